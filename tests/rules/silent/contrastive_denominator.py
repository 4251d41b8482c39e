import copy
import os

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, Dataset


def contrastive_loss(features, positive, negative, temperature):
    features = F.normalize(features, dim=-1)
    logits = features @ features.T / temperature
    denominator = (torch.exp(logits) * positive.logical_or(negative)).sum(dim=1, keepdim=True)
    return -((logits * positive - torch.log(denominator)) * positive).sum(1).mean()
