import copy
import os

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, Dataset


def actor_loss(actor, critic, states, alpha, eps):
    probs = torch.softmax(actor(states), dim=-1)
    log_probs = torch.log(probs + eps)
    return (probs * (alpha * log_probs - critic(states))).sum(dim=1).mean()
