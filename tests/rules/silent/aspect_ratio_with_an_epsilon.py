import copy
import os

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, Dataset


def ciou_loss(a, b):
    wa, ha = a[..., 2] - a[..., 0], a[..., 3] - a[..., 1]
    wb, hb = b[..., 2] - b[..., 0], b[..., 3] - b[..., 1]
    v = (torch.atan(wb / (hb + 1e-7)) - torch.atan(wa / (ha + 1e-7))) ** 2
    return v.mean()
