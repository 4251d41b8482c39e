import copy
import os

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, Dataset


def default_conv(n_in, n_out, size):
    return nn.Conv2d(n_in, n_out, size, padding=size // 2)


class Block(nn.Module):
    def __init__(self, conv: nn.Module, width: int):
        super().__init__()
        self.body = nn.Sequential(conv(width, width, 3), nn.ReLU())


class Net(nn.Module):
    def __init__(self, width: int, depth: int, conv: nn.Module = default_conv):
        super().__init__()
        body = [Block(conv, width) for _ in range(depth)]
        body.append(conv(width, width, 3))
        self.body = nn.Sequential(*body)
