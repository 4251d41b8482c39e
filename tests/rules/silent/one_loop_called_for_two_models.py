import copy
import os

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, Dataset


def fit(model, optimizer, loader, k):
    optimizer.zero_grad()
    for i, x in enumerate(loader, start=1):
        (model(x).square().mean() / k).backward()
        do_step = (i % k == 0) or (i == len(loader))
        if do_step:
            optimizer.step()
            optimizer.zero_grad()


def main(cfg):
    loader = DataLoader(torch.randn(64, 4), batch_size=cfg.batch_size)
    for build in (nn.Linear, nn.Bilinear):
        model = build(4, 4)
        fit(model, torch.optim.Adam(model.parameters()), loader, cfg.k)
    other = nn.Linear(4, 1)
    fit(other, torch.optim.Adam(other.parameters()), loader, cfg.k)


main(read_configuration())
