# the program refuses any other kind; fit() puts the model into train mode; the outputs have no graph
import copy
import os

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, Dataset


class FocalLoss(nn.Module):
    def forward(self, logits, y):
        return F.cross_entropy(logits, y).mean()


class Trainer:
    def __init__(self, loader, kind):
        if kind == "small":
            self.model = nn.Sequential(nn.Linear(4, 2), nn.Dropout())
        elif kind == "large":
            self.model = nn.Sequential(nn.Linear(4, 3), nn.Dropout())
        else:
            raise ValueError(kind)
        self.loader = loader
        self.optimizer = torch.optim.Adam(self.model.parameters())
        self.criterion = FocalLoss()

    def run(self):
        for x, y in self.loader:
            self.optimizer.zero_grad()
            loss = self.criterion(self.model(x), y)
            loss.backward()
            self.optimizer.step()
        return self.evaluate()

    def evaluate(self):
        total = torch.tensor(0.0)
        self.model.eval()
        for x, y in self.loader:
            with torch.no_grad():
                out = self.model(x)
            loss = self.criterion(out, y)
            total = total + loss
        return total.item()

    def fit(self):
        for epoch in range(9):
            self.model.train()
            self.run()
