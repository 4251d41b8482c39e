import copy
import os

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, Dataset


def head_norm(model):
    for name, p in model.named_parameters():
        if name == "head.weight":
            weight = p.detach().cpu().numpy()
    return (weight**2).sum()


def train(model, loader):
    model.cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for x in loader:
        optimizer.zero_grad()
        model(x.cuda()).mean().backward()
        print(head_norm(model))
        optimizer.step()
