"""A Trainer class: the clip comes after the step, in another method."""
import torch
from torch import nn
from torch.nn.utils import clip_grad_norm_


class Trainer:
    def __init__(self, model, train_loader, config):
        self.model = model
        self.train_loader = train_loader
        self.config = config
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=config.lr)
        self.criterion = nn.CrossEntropyLoss()

    def _update(self, loss):
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        self._clip()

    def _clip(self):
        clip_grad_norm_(self.model.parameters(), self.config.max_norm)  # FL101

    def fit(self):
        for epoch in range(self.config.epochs):
            self.model.train()
            for x, y in self.train_loader:
                loss = self.criterion(self.model(x), y)
                self._update(loss)
            self.validate()

    def validate(self):
        self.model.eval()
        with torch.no_grad():
            for x, y in self.train_loader:
                self.criterion(self.model(x), y)
