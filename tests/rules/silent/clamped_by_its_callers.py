import copy
import os

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, Dataset


def clamped_sigmoid(x):
    return torch.clamp(x.sigmoid_(), min=1e-4, max=1 - 1e-4)


def focal_loss(pred, gt):
    positive, negative = gt.eq(1).float(), gt.lt(1).float()
    loss = torch.log(pred) * (1 - pred) ** 2 * positive + torch.log(1 - pred) * pred**2 * negative
    return -loss.sum()
