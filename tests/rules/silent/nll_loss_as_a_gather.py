import copy
import os

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, Dataset


def estimate(model, x, y, noise):
    softmax = F.softmax(model(x + noise), dim=1)
    grad = F.nll_loss(softmax, y, reduction="none").view(-1, 1) * noise
    return grad.mean(0)
