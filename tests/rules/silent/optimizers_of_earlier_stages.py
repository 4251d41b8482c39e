import os

import torch
from torch import nn


def train(model: nn.Module, source, target, epochs: int, resume: str | None = None) -> None:
    warm = torch.optim.Adam(model.parameters(), lr=1e-3)
    for x in source:
        warm.zero_grad()
        model(x).pow(2).mean().backward()
        warm.step()

    optimizer = torch.optim.Adam(model.parameters(), lr=3e-4)
    scheduler = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer)
    start = 0
    if resume is not None and os.path.exists(resume):
        state = torch.load(resume)
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        scheduler.load_state_dict(state["scheduler"])
        start = state["epoch"] + 1
    for epoch in range(start, epochs):
        total = 0.0
        for x in target:
            optimizer.zero_grad()
            loss = model(x).pow(2).mean()
            loss.backward()
            optimizer.step()
            total += loss.item()
        scheduler.step(total)
        torch.save(
            {
                "model": model.state_dict(),
                "optimizer": optimizer.state_dict(),
                "scheduler": scheduler.state_dict(),
                "epoch": epoch,
            },
            "resume.pt",
        )
