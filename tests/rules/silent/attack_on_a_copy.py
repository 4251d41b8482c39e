import copy
import os

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, Dataset


from torch.nn.parallel import DistributedDataParallel as DDP


def perturb(model, x, y, steps=5):
    attacked = copy.deepcopy(model)
    delta = torch.zeros_like(x, requires_grad=True)
    for _ in range(steps):
        loss = F.cross_entropy(attacked(x + delta), y)
        loss.backward()
        delta.data = (delta + 0.01 * delta.grad.sign()).clamp(-0.1, 0.1)
        delta.grad.zero_()
    return x + delta.detach()


def train(model, loader):
    model = DDP(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for x, y in loader:
        adversarial = perturb(model.module, x, y)
        optimizer.zero_grad()
        F.cross_entropy(model(adversarial), y).backward()
        optimizer.step()
