import torch
from torch import nn
from torch.utils.data import DataLoader

model = nn.Linear(4, 1)
optimizer = torch.optim.Adam(model.parameters())
loader = DataLoader(torch.randn(64, 4), batch_size=4)
accumulation = 4
for epoch in range(3):
    count = 0
    optimizer.zero_grad()
    for x in loader:
        count += 1
        (model(x).square().mean() / accumulation).backward()
        if count % accumulation == 0:
            optimizer.step()
            optimizer.zero_grad()
    optimizer.step()
    optimizer.zero_grad()
