import copy
import os

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, Dataset


def finetune(head, loader):
    optimizer = torch.optim.SGD(head.parameters(), lr=0.1)
    best = copy.deepcopy(head)
    torch.autograd.set_detect_anomaly(True)
    for epoch in range(3):
        for x, y in loader:
            optimizer.zero_grad()
            loss = F.cross_entropy(head(x), y)
            try:
                loss.backward()
            except RuntimeError:
                return best
            optimizer.step()
        best = copy.deepcopy(head)
    return best
