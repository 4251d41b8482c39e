import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader


def entropy(logits, legal):
    logits = logits.masked_fill(~legal, float("-inf"))
    probs, log_probs = F.softmax(logits, dim=-1), F.log_softmax(logits, dim=-1)
    terms = probs * log_probs
    terms = torch.where(torch.isfinite(terms), terms, torch.zeros_like(terms))
    return -terms.sum(dim=-1).mean()
