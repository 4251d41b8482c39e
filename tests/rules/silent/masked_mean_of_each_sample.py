import copy
import os

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, Dataset


def train(model, loader, k):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for i, (x, y, mask) in enumerate(loader):
        each = F.mse_loss(model(x), y, reduction="none") * mask
        loss = (each.sum(dim=1) / mask.sum(dim=1).clamp(min=1)).mean()
        (loss / k).backward()
        if (i + 1) % k == 0 or i + 1 == len(loader):
            optimizer.step()
            optimizer.zero_grad()
