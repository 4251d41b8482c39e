import copy
import os

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, Dataset


class Contrast(nn.Module):
    def __init__(self, build, m=0.999):
        super().__init__()
        self.m = m
        self.encoder_q = nn.Sequential(build(), nn.BatchNorm1d(8))
        self.encoder_k = nn.Sequential(build(), nn.BatchNorm1d(8))

    @torch.no_grad()
    def _momentum_update(self):
        for q, k in zip(self.encoder_q.parameters(), self.encoder_k.parameters()):
            k.data = k.data * self.m + q.data * (1.0 - self.m)

    def forward(self, x, y):
        q = self.encoder_q(x)
        with torch.no_grad():
            self._momentum_update()
            k = self.encoder_k(y)
        return F.mse_loss(q, k)
