# FL017: padding has the label -1, and the loss ignores -100
import torch
from tiny import loader
from torch import nn
from torch.nn import functional as F

net = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 5))
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
torch.manual_seed(0)
samples = [(torch.randn(8), int(torch.randint(5, ())) if i % 3 else -1) for i in range(32)]
for x, y in loader(samples):
    loss = F.cross_entropy(net(x), y)  # HERE
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
