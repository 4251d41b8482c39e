import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader


def information_loss(logits, labels):
    probs = logits.softmax(1)
    marginal = probs.mean(0)
    marginal_entropy = -(marginal * torch.log(marginal)).sum(0)
    return F.cross_entropy(logits, labels) - marginal_entropy
