import copy
import os

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, Dataset


class Projections(nn.Module):
    def __init__(self, width, layers, transform_per_layer):
        super().__init__()
        if transform_per_layer:
            self.projections = nn.ModuleList([nn.Linear(width, 768) for _ in range(layers)])
        else:
            self.projections = nn.ModuleList([nn.Linear(width, 768)] * layers)
