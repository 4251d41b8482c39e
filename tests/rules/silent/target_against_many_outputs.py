import torch
from torch import nn

decoders = nn.Linear(8, 12)
optimizer = torch.optim.Adam(decoders.parameters())
for x, target in torch.utils.data.DataLoader([(torch.randn(8), torch.randn(2))] * 64, batch_size=8):
    output = decoders(x).view(6, -1, 2)
    loss = (target.unsqueeze(0) - output).square().sum(-1).sqrt().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
