"""DARTS: the choice of the operations is kept out of parameters() on purpose, and given to its own optimizer."""

import torch
from torch import nn


class Network(nn.Module):
    def __init__(self, choices):
        super().__init__()
        self.operations = nn.ModuleList(nn.Linear(4, 4) for _ in range(choices))
        self._init_alphas(choices)

    def _init_alphas(self, choices):
        self.alphas = torch.zeros(choices, requires_grad=True)
        self._arch_parameters = [self.alphas]

    def arch_parameters(self):
        return self._arch_parameters

    def forward(self, x):
        weights = torch.softmax(self.alphas, dim=-1)
        return sum(w * operation(x) for w, operation in zip(weights, self.operations))


class Architect:
    def __init__(self, model):
        self.model = model
        self.optimizer = torch.optim.Adam(model.arch_parameters(), lr=3e-4)
