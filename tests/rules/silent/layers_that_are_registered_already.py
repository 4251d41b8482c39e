import copy
import os

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, Dataset


class Features(nn.Module):
    def __init__(self, vgg):
        super().__init__()
        self.features = vgg.features
        self.sequence = [nn.Sequential(layer) for layer in self.features]

    def forward(self, x):
        for layer in self.sequence:
            x = layer(x)
        return x
