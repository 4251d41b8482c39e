import copy
import os

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, Dataset


from torchmeta.utils.gradient_based import gradient_update_parameters


def test_maml(model, loader, criterion):
    model.eval()
    total = 0.0
    for support_x, support_y, query_x, query_y in loader:
        inner_loss = criterion(model(support_x), support_y)
        params = gradient_update_parameters(model, inner_loss, step_size=0.4)
        total += criterion(model(query_x, params=params), query_y).item()
    return total


def train(model, loader, criterion):
    optimizer = torch.optim.Adam(model.parameters())
    for epoch in range(9):
        model.train()
        for x, y in loader:
            optimizer.zero_grad()
            criterion(model(x), y).backward()
            optimizer.step()
        print(test_maml(model, loader, criterion))
