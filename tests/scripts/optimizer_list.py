"""A list of optimizers; the clip runs before any backward."""
import torch
from torch import nn

encoder, decoder = nn.Linear(4, 4), nn.Linear(4, 4)
optimizers = [torch.optim.Adam(m.parameters(), lr=1e-3) for m in (encoder, decoder)]
loader = torch.utils.data.DataLoader(torch.randn(64, 4), batch_size=8)


def reset_grad():
    for optimizer in optimizers:
        optimizer.zero_grad()


for x in loader:
    reset_grad()
    loss = (decoder(encoder(x)) - x).pow(2).mean()
    nn.utils.clip_grad_norm_(encoder.parameters(), 1.0)  # FL102
    loss.backward()
    for optimizer in optimizers:
        optimizer.step()
