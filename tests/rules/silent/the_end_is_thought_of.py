import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader


class Trainer:
    def __init__(self, model, criterion, loader, optimizer, config, len_epoch=None):
        self.model, self.criterion, self.loader = model, criterion, loader
        self.optimizer, self.config = optimizer, config
        self.len_epoch = len_epoch or count(loader)

    def fit(self, epochs):
        for epoch in range(epochs):
            for i, x in enumerate(self.loader):
                if i >= self.len_epoch:
                    break
                self.step(x, i)

    def step(self, x, i):
        losses = self.criterion(self.model(x))
        for name, loss in losses.items():
            losses[name] = loss / self.config["accumulation_steps"]
        losses["loss"].backward()
        if ((i + 1) % self.config["accumulation_steps"] == 0) or (i + 1 == self.len_epoch):
            self.optimizer.step()
            self.optimizer.zero_grad()
