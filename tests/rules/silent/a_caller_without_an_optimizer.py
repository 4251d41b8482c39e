import copy
import os

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, Dataset


def run_epoch(model, loader, optimizer=None):
    for x in loader:
        optimizer.zero_grad()
        model(x).mean().backward()
        optimizer.step()


model = nn.Linear(4, 1)
run_epoch(model, DataLoader(torch.randn(8, 4)))
