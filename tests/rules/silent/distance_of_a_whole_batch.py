import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader


def pairing_loss(model, clean, attacked, y):
    a, b = model(clean), model(attacked)
    distance = torch.sqrt(torch.sum((a - b) ** 2)) / clean.size(0)
    return F.cross_entropy(b, y) + distance
