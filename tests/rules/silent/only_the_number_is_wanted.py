import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader


def episode(model, batches, optimizer, train):
    losses = 0
    for x, y in batches:
        loss = F.cross_entropy(model(x), y)
        if train:
            losses += loss
        else:
            losses += loss.item()
    if train:
        optimizer.zero_grad()
        losses.backward()
        optimizer.step()
    return losses
