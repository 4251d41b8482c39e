import copy
import os

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, Dataset


model = nn.Linear(4, 1)
loader = DataLoader(torch.randn(8, 4))
loss = model(torch.randn(2, 4)).mean()
loss.backward()
torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
print(model.weight.grad.max())
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for x in loader:
    optimizer.zero_grad()
    model(x).mean().backward()
    optimizer.step()
