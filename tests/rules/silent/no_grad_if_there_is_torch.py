import copy
import os

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, Dataset


AVAILABLE = True


class Sampler:
    def __init__(self, model):
        self.model = model

    def fit(self, loader):
        optimizer = torch.optim.Adam(self.model.parameters())
        self.model.train()
        for x in loader:
            optimizer.zero_grad()
            self.model(x).mean().backward()
            optimizer.step()

    @torch.no_grad() if AVAILABLE else (lambda f: f)
    def sample(self, loader):
        self.model.eval()
        return [self.model(x).numpy() for x in loader]
