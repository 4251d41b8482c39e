import torch
from torch import nn

model = nn.Linear(4, 1)
optimizer = torch.optim.AdamW(model.parameters())
for step, x in enumerate(torch.utils.data.DataLoader(torch.randn(64, 4), batch_size=8)):
    optimizer.zero_grad()
    model(x).pow(2).mean().backward()
    optimizer.step()
    checkpoint = {"model": model.state_dict(), "step": step}
    # the optimizer's state would be needed to resume exactly
    torch.save(checkpoint, f"model_{step}.pt")
