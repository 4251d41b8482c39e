import copy
import os

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, Dataset


class RunningMean:
    def __init__(self):
        self.values = []

    def __iadd__(self, value):
        self.values.append(value.detach().cpu())
        return self


class Tracker:
    def __init__(self):
        self.tracks = {}

    def update(self, losses):
        for name, loss in losses.items():
            if name not in self.tracks:
                self.tracks[name] = RunningMean()
            self.tracks[name] += loss


def train(model, loader):
    optimizer = torch.optim.Adam(model.parameters())
    tracker = Tracker()
    for x in loader:
        optimizer.zero_grad()
        loss = model(x).mean()
        loss.backward()
        optimizer.step()
        tracker.update(dict(loss=loss))
