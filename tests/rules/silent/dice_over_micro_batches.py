"""Dice is a ratio of sums over whole volumes of one size. Nothing is masked, so a mean over micro-batches is the mean."""

import torch
from torch import nn


class DiceLoss(nn.Module):
    def __init__(self, smooth=1.0):
        super().__init__()
        self.smooth = smooth
        self.bce = nn.BCEWithLogitsLoss()

    def forward(self, logits, targets):
        p, t = torch.sigmoid(logits).view(-1), targets.view(-1)
        intersection = (p * t).sum()
        dice = 1 - (2.0 * intersection + self.smooth) / (p.sum() + t.sum() + self.smooth)
        return 0.5 * self.bce(logits, targets) + 0.5 * dice


model, criterion = nn.Conv3d(1, 1, 3, padding=1), DiceLoss()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
batches = [(torch.randn(2, 1, 8, 8, 8), torch.randint(2, (2, 1, 8, 8, 8)).float())] * 8
accumulation_steps = 4
for epoch in range(2):
    optimizer.zero_grad()
    for i, (x, y) in enumerate(batches, start=1):
        loss = criterion(model(x), y) / accumulation_steps
        loss.backward()
        if i % accumulation_steps == 0:
            optimizer.step()
            optimizer.zero_grad()
