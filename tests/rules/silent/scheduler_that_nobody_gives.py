"""The function could step a scheduler, and no call hands it one."""

import torch
from torch import nn
from torch.nn import functional as F


def train(model, optimizer, loader, epochs, path, scheduler=None):
    for epoch in range(epochs):
        for x, y in loader:
            optimizer.zero_grad()
            F.mse_loss(model(x), y).backward()
            optimizer.step()
        if scheduler is not None:
            scheduler.step()
        torch.save(
            {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "epoch": epoch}, path
        )


resume = False
model = nn.Linear(4, 1)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
if resume:
    checkpoint = torch.load("last.pt")
    model.load_state_dict(checkpoint["model"])
    optimizer.load_state_dict(checkpoint["optimizer"])
data = torch.utils.data.TensorDataset(torch.randn(32, 4), torch.randn(32, 1))
train(model, optimizer, torch.utils.data.DataLoader(data, batch_size=8), 100, "last.pt")
