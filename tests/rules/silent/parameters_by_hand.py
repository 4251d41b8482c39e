import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader


class Crossmodal(nn.Module):
    def __init__(self, sizes):
        super().__init__()
        self.encoder = {}
        for name, size in sizes.items():
            self.encoder[name] = nn.Linear(size, 64)
        parameters = list(self.parameters())
        for name in sizes:
            parameters += list(self.encoder[name].parameters())
        self.optimizer = torch.optim.Adam(parameters)

    def forward(self, name, x):
        return self.encoder[name](x)
