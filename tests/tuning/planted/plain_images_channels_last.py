# FL028: images have their channels last
import torch
from tiny import loader
from torch import nn
from torch.nn import functional as F

torch.manual_seed(0)
samples = [(torch.randn(16, 16, 3), i % 4) for i in range(64)]
net = nn.Sequential(
    nn.Conv2d(16, 8, 3, padding=1),
    nn.ReLU(),
    nn.AdaptiveAvgPool2d(1),
    nn.Flatten(),
    nn.Linear(8, 4),
)
optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
for x, y in loader(samples):
    logits = net(x)  # HERE
    loss = F.cross_entropy(logits, y)
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
