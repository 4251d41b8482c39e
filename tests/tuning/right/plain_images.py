# images between 0 and 1, channels first
import torch
from tiny import loader
from torch import nn
from torch.nn import functional as F

torch.manual_seed(0)
samples = [(torch.rand(3, 16, 16), i % 4) for i in range(64)]
net = nn.Sequential(
    nn.Conv2d(3, 8, 3),
    nn.BatchNorm2d(8),
    nn.ReLU(),
    nn.AdaptiveAvgPool2d(1),
    nn.Flatten(),
    nn.Linear(8, 4),
)
optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
for x, y in loader(samples, shuffle=True):
    loss = F.cross_entropy(net(x), y)
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
