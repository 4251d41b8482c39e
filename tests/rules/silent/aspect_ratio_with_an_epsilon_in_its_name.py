import copy
import os

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, Dataset


def ciou_loss(a, b, eps=1e-7):
    wa, ha = a[:, 2] - a[:, 0], a[:, 3] - a[:, 1] + eps
    wb, hb = b[:, 2] - b[:, 0], b[:, 3] - b[:, 1] + eps
    return torch.pow(torch.atan(wb / hb) - torch.atan(wa / ha), 2).mean()
