import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader


class LabelSmoothing(nn.Module):
    def __init__(self, size, smoothing=0.1):
        super().__init__()
        self.size, self.smoothing = size, smoothing

    def forward(self, logits, y):
        soft = F.one_hot(y, self.size) * (1 - self.smoothing) + self.smoothing / self.size
        return F.kl_div(F.log_softmax(logits, -1), soft, reduction="batchmean")


def evaluate(loader, model, criterion):
    total = 0
    for x, y in loader:
        with torch.no_grad():
            logits = model(x)
        total += len(x) * criterion(logits, y)
    return total


def train(loader):
    model, criterion = nn.Linear(4, 2), LabelSmoothing(2)
    optimizer = torch.optim.Adam(model.parameters())
    for epoch in range(3):
        for x, y in loader:
            optimizer.zero_grad()
            criterion(model(x), y).backward()
            optimizer.step()
        print(evaluate(loader, model, criterion))
