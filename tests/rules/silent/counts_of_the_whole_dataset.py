import copy
import os

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, Dataset


class GroupLossComputer:
    def __init__(self, criterion, dataset):
        self.criterion = criterion
        self.counts, self.fractions = self.count_groups(dataset)

    def count_groups(self, dataset):
        groups = torch.zeros(len(dataset))
        counts = (torch.arange(4).unsqueeze(1) == groups).sum(1)
        return counts, counts / counts.sum()

    def loss(self, yhat, y):
        return self.criterion(yhat, y).mean()
