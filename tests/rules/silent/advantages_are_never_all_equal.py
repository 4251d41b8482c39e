import copy
import os

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, Dataset


def policy_loss(log_probs, advantages):
    advantages = (advantages - advantages.mean()) / advantages.std()
    return -(log_probs * advantages).mean()
