import copy
import os

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, Dataset


from torch.autograd import Function


class Distance(Function):
    def __init__(self, p):
        super().__init__()
        self.p = p

    def forward(self, a, b):
        return torch.pow((a - b).abs() + 1e-4, self.p).sum(1)


def compare(a, b):
    return Distance(2).forward(a, b)
