import copy
import os

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, Dataset


def train(model, loader, resume):
    optimizer = torch.optim.AdamW(model.parameters())
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 10)
    start = 0
    if resume:
        model.load_state_dict(torch.load("model.pt"))
        optimizer.load_state_dict(torch.load("optimizer.pt"))
        scheduler.load_state_dict(torch.load("scheduler.pt"))
        start = torch.load("state.pt")["epoch"]
    for epoch in range(start, 100):
        for x in loader:
            optimizer.zero_grad()
            model(x).mean().backward()
            optimizer.step()
        scheduler.step()
        torch.save(model.state_dict(), "model.pt")
        torch.save(optimizer.state_dict(), "optimizer.pt")
        torch.save(scheduler.state_dict(), "scheduler.pt")
        torch.save({"epoch": epoch + 1}, "state.pt")
