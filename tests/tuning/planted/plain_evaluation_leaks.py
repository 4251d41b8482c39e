# FL026: the evaluation set is a part of the training set
import torch
from tiny import loader
from torch import nn
from torch.nn import functional as F

torch.manual_seed(0)
samples = [(torch.randn(8), i % 3) for i in range(64)]
train, evaluate = loader(samples, shuffle=True), loader(samples[:20])
net = nn.Linear(8, 3)
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
for x, y in train:
    loss = F.cross_entropy(net(x), y)  # HERE
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
