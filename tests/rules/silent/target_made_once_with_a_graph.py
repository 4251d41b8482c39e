import copy
import os

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, Dataset


x = torch.linspace(-1, 1, 50).reshape(-1, 1).requires_grad_(True)
y = x**3 + torch.randn_like(x)
model = nn.Linear(1, 1)
optimizer = torch.optim.Adam(model.parameters())
for epoch in range(100):
    optimizer.zero_grad()
    loss = F.mse_loss(model(x), y)
    loss.backward(retain_graph=True)
    optimizer.step()
