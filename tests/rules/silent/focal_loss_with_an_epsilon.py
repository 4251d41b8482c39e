import copy
import os

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, Dataset


def focal_loss(logits, target, eps=1e-10):
    p = torch.softmax(logits, dim=1).gather(1, target).view(-1) + eps
    return -((1 - p) ** 2 * p.log()).mean()
