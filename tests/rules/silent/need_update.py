import copy
import os

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, Dataset


def train_one_epoch(model, loader, optimizer, loss_fn, accum_steps):
    last_idx = len(loader) - 1
    for batch_idx, (x, y) in enumerate(loader):
        last_batch = batch_idx == last_idx
        need_update = last_batch or (batch_idx + 1) % accum_steps == 0
        loss = loss_fn(model(x), y) / accum_steps
        loss.backward()
        if not need_update:
            continue
        optimizer.step()
        optimizer.zero_grad()


model = nn.Linear(4, 2)
train_one_epoch(
    model,
    DataLoader(torch.randn(8, 4)),
    torch.optim.SGD(model.parameters(), lr=0.1),
    nn.MSELoss(),
    4,
)
