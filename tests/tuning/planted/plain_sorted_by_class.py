# FL028: the data is sorted by class and not shuffled
import torch
from tiny import loader
from torch import nn
from torch.nn import functional as F

torch.manual_seed(0)
samples = [(torch.randn(8), i // 32) for i in range(96)]
net = nn.Linear(8, 3)
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
for x, y in loader(samples):
    loss = F.cross_entropy(net(x), y)  # HERE
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
