import copy
import os

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, Dataset


def class_ratio_loss(gradients, count):
    Delta_W = []
    for gradient in gradients:
        Delta_W.append(gradient)
    Delta_W_sum = torch.sum(torch.stack(Delta_W, dim=0), dim=0)
    return torch.stack(
        [torch.mean(count * Delta_W[p] / (Delta_W_sum - Delta_W[p])) for p in range(count)]
    ).mean()
