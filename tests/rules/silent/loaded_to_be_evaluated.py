import copy
import os

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, Dataset


def main(args, model, loader):
    optimizer = torch.optim.Adam(model.parameters())
    if args.run_eval:
        checkpoint = torch.load(args.weights)
        model.load_state_dict(checkpoint["model"])
        optimizer.load_state_dict(checkpoint["optimizer"])
        model.eval()
    for epoch in range(args.epochs):
        for x in loader:
            optimizer.zero_grad()
            model(x).mean().backward()
            optimizer.step()
        torch.save(
            {"epoch": epoch, "model": model.state_dict(), "optimizer": optimizer.state_dict()},
            f"{epoch}.pt",
        )
