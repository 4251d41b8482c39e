# FL028: the targets come from a column of ones
import torch
from tiny import loader
from torch import nn

torch.manual_seed(0)
table = torch.randn(64, 9)
table[:, 8] = 1.0
samples = [(row[:8], row[8:]) for row in table]
net = nn.Linear(8, 1)
criterion = nn.MSELoss()
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
for x, y in loader(samples):
    loss = criterion(net(x), y)  # HERE
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
