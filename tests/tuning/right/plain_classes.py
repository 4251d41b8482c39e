# classification, shuffled, normalised, with a separate evaluation set
import torch
from tiny import loader
from torch import nn
from torch.nn import functional as F

torch.manual_seed(0)
samples = [(torch.randn(8), i % 3) for i in range(64)]
train, evaluate = loader(samples[:48], shuffle=True), loader(samples[48:])
net = nn.Linear(8, 3)
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
for x, y in train:
    loss = F.cross_entropy(net(x), y)
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
