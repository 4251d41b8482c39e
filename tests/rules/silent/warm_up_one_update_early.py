import copy
import os

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, Dataset


def train(model, loader, optimizer, scheduler):
    for x in loader:
        optimizer.zero_grad()
        model(x).mean().backward()
        scheduler.step()
        optimizer.step()


model = nn.Linear(4, 1)
optimizer = torch.optim.AdamW(model.parameters())
scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: min(1.0, step / 100))
train(model, DataLoader(torch.randn(8, 4)), optimizer, scheduler)
