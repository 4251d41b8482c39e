# sums divided by the tokens of the whole window: exactly what FL111 teaches
import copy
import os

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, Dataset


def train(model, loader, optimizer, k):
    window = []
    for batch in loader:
        window.append(batch)
        if len(window) < k:
            continue
        tokens = sum((y != -100).sum() for _, y in window)
        optimizer.zero_grad()
        for x, y in window:
            loss = F.cross_entropy(model(x), y, ignore_index=-100, reduction="sum")
            (loss / tokens).backward()
        optimizer.step()
        window = []
