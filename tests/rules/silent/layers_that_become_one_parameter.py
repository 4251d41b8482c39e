"""The weights of the layers are stacked into one Parameter, and the tuple that held them is deleted."""

import torch
from torch import nn


class Scan(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.projections = (nn.Linear(width, 8, bias=False), nn.Linear(width, 8, bias=False))
        self.weight = nn.Parameter(torch.stack([layer.weight for layer in self.projections]))
        del self.projections

    def forward(self, x):
        return torch.einsum("bw,kow->bko", x, self.weight)
