"""The checkpoint also says how the optimizer was set up; what a resume needs is its state, and that is loaded."""

import os

import torch
from torch import nn

settings = {"lr": 1e-3, "weight_decay": 1e-2}
model = nn.Linear(4, 2)
optimizer = torch.optim.AdamW(model.parameters(), **settings)
start = 0
if os.path.exists("last.pt"):
    checkpoint = torch.load("last.pt")
    model.load_state_dict(checkpoint["model_state_dict"])
    optimizer.load_state_dict(checkpoint["optimizer_state_dict"])
    start = checkpoint["epoch"]
for epoch in range(start, 10):
    for x, y in [(torch.randn(8, 4), torch.randint(2, (8,)))] * 4:
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
    torch.save(
        {
            "epoch": epoch + 1,
            "model_state_dict": model.state_dict(),
            "optimizer_state_dict": optimizer.state_dict(),
            "optimizer_params": settings,
        },
        "last.pt",
    )
