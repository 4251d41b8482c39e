import copy
import os

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, Dataset


def fit(model):
    x = torch.linspace(-1, 1, 50).reshape(-1, 1).requires_grad_(True)
    y = x**3
    optimizer = torch.optim.Adam(model.parameters())
    for epoch in range(100):
        optimizer.zero_grad()
        F.mse_loss(model(x), y).backward(retain_graph=True)
        optimizer.step()
