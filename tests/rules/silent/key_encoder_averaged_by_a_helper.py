"""BYOL: the target runs in train mode and keeps statistics of its own; a helper averages the parameters."""

import torch
from torch import nn


class Byol(nn.Module):
    def __init__(self, make):
        super().__init__()
        self.online_network, self.target_network = make(), make()
        self.head = nn.Sequential(nn.Linear(64, 64), nn.BatchNorm1d(64))

    def forward(self, view1, view2):
        query = self.head(self.online_network(view1))
        with torch.no_grad():
            self.momentum_update(0.99)
            key = self.target_network(view2)
        return query, key

    @staticmethod
    def _momentum_update(source, target, m):
        for source_param, target_param in zip(source.parameters(), target.parameters()):
            target_param.data = m * target_param.data + (1.0 - m) * source_param.data

    @torch.no_grad()
    def momentum_update(self, m):
        self._momentum_update(self.online_network, self.target_network, m)
