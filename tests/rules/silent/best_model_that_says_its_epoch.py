"""The best weights, and of which epoch they are: they are loaded to predict, not to go on."""

import torch


class Trainer:
    def __init__(self, model):
        self.model = model
        self.optimizer = torch.optim.AdamW(model.parameters())
        self.best_state, self.best_epoch = None, 0

    def fit(self, loader, epochs):
        for epoch in range(epochs):
            for x, y in loader:
                self.optimizer.zero_grad()
                torch.nn.functional.cross_entropy(self.model(x), y).backward()
                self.optimizer.step()
            self.best_state, self.best_epoch = self.model.state_dict(), epoch

    def save(self, path):
        checkpoint = {"model": self.best_state}
        checkpoint["best_epoch"] = self.best_epoch
        torch.save(checkpoint, path)

    def load(self, path):
        checkpoint = torch.load(path)
        self.model.load_state_dict(checkpoint["model"])
        self.best_epoch = checkpoint["best_epoch"]
