import argparse

import torch
from torch import nn


def restore_random_state(checkpoint):
    torch.set_rng_state(checkpoint["rng"])


parser = argparse.ArgumentParser()
parser.add_argument("--init")
parser.add_argument("--resume")
args = parser.parse_args()
model = nn.Linear(4, 2)
optimizer = torch.optim.AdamW(model.parameters())
scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 10)
start = 0
if args.init is not None and args.resume is None:
    checkpoint = torch.load(args.init)
    model.load_state_dict(checkpoint["model"])
if args.resume is not None:
    checkpoint = torch.load(args.resume)
    model.load_state_dict(checkpoint["model"])
    optimizer.load_state_dict(checkpoint["optimizer"])
    scheduler.load_state_dict(checkpoint["scheduler"])
    restore_random_state(checkpoint)
    start = checkpoint["epoch"] + 1
for epoch in range(start, 10):
    for x in torch.randn(8, 4, 4):
        optimizer.zero_grad()
        model(x).pow(2).mean().backward()
        optimizer.step()
    scheduler.step()
    torch.save(
        {
            "model": model.state_dict(),
            "optimizer": optimizer.state_dict(),
            "scheduler": scheduler.state_dict(),
            "rng": torch.get_rng_state(),
            "epoch": epoch,
        },
        f"{epoch}.pt",
    )
