"""A scheduler counts up a depth: the optimizer under it holds one made-up number and is not meant to step."""

import torch
from torch import nn

model = nn.Linear(4, 1)
optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
depth = torch.optim.lr_scheduler.LinearLR(
    torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=8.0), 0.1
)
loader = torch.utils.data.DataLoader(torch.randn(8, 4), batch_size=2)
for x in loader:
    optimizer.zero_grad()
    model(x).mean().backward()
    optimizer.step()
    depth.step()
    print(depth.get_last_lr()[0])
