import copy
import os

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, Dataset


class Trainer:
    def __init__(self, model, loader, optimizer, path):
        self.model, self.loader, self.optimizer, self.path = model, loader, optimizer, path
        self.epochs_run = 0
        if os.path.exists(path):
            snapshot = torch.load(path)
            self.model.load_state_dict(snapshot["MODEL_STATE"])
            self.epochs_run = snapshot["EPOCHS_RUN"]

    def fit(self):
        for epoch in range(self.epochs_run, 9):
            for x, y in self.loader:
                self.optimizer.zero_grad()
                F.mse_loss(self.model(x), y).backward()
                self.optimizer.step()
            torch.save({"MODEL_STATE": self.model.state_dict(), "EPOCHS_RUN": epoch}, self.path)


model = nn.Linear(4, 1)
Trainer(
    model,
    DataLoader(torch.randn(8, 4)),
    torch.optim.SGD(model.parameters(), lr=1e-3),
    "snapshot.pt",
).fit()
