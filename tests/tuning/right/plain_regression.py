# regression
import torch
from tiny import loader
from torch import nn

torch.manual_seed(0)
table = torch.randn(64, 9)
samples = [(row[:8], row[8:]) for row in table]
net = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 1))
criterion = nn.SmoothL1Loss()
optimizer = torch.optim.Adam(net.parameters())
for x, y in loader(samples):
    loss = criterion(net(x), y)
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
