# FL017: classes are counted from 1
import torch
from tiny import loader
from torch import nn

net = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 3))
criterion = nn.CrossEntropyLoss()
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
torch.manual_seed(0)
samples = [(torch.randn(8), 1 + i % 3) for i in range(32)]
for x, y in loader(samples):
    loss = criterion(net(x), y)  # HERE
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
