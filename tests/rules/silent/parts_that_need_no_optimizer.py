import torch
from torch import nn


class RandomFeatures(nn.Module):
    def __init__(self, size):
        super().__init__()
        self.register_buffer("frequencies", torch.randn(size, size))

    def forward(self, x):
        return torch.cos(x @ self.frequencies)


class Process(nn.Module):
    def __init__(self, size):
        super().__init__()
        self.features = nn.Linear(size, size)
        self.normalize = nn.LayerNorm(size)
        self.random = RandomFeatures(size)
        self.beta = nn.Linear(size, 1)

    def forward(self, x):
        return self.beta(self.random(self.normalize(self.features(x))))

    def configure_optimizers(self):
        return torch.optim.SGD(
            [{"params": self.features.parameters()}, {"params": self.beta.parameters()}], lr=0.1
        )
