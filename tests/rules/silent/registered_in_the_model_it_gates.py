import copy
import os

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, Dataset


class Student(nn.Module):
    def __init__(self, model, names):
        super().__init__()
        self.model = model
        self.gates = dict()
        for name in names:
            gate = nn.Conv2d(8, 8, 1)
            self.gates[name] = gate
            setattr_block(model, name, nn.Sequential(copy.deepcopy(getattr(model, name)), gate))
