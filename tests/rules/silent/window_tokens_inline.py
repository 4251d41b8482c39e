import copy
import os

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, Dataset


model = nn.Linear(8, 8)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
loader = DataLoader(torch.randn(64, 8), batch_size=4)
batches = iter(loader)
for step in range(10):
    window = [next(batches) for _ in range(4)]
    tokens = sum((x != 0).sum() for x in window)
    for x in window:
        loss = F.mse_loss(model(x), x, reduction="sum")
        (loss / tokens).backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad()
