"""A feature is never exactly equal to a centre that began with random numbers."""

import torch
from torch import nn


class CenterLoss(nn.Module):
    def __init__(self, classes, size):
        super().__init__()
        self.centers = nn.Parameter(torch.randn(classes, size))

    def forward(self, x, labels):
        center = self.centers[labels]
        dist = (x - center).pow(2).sum(dim=-1)
        dist = torch.sqrt(dist)
        return dist.mean()
