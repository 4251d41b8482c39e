"""The schedule begins at the batch that the checkpoint names; without the option there is none."""

import torch
from torch.optim.lr_scheduler import LambdaLR


def train(model, loader, args):
    optimizer = torch.optim.Adam(model.parameters(), lr=args.lr)
    batches, epoch = 0, 0
    if args.resume:
        checkpoint = torch.load(args.resume)
        model.load_state_dict(checkpoint["model"])
        optimizer.load_state_dict(checkpoint["optimizer"])
        batches, epoch = checkpoint["batches"], checkpoint["epoch"]
    if args.warm_up:
        scheduler = LambdaLR(optimizer, lambda x: min(1.0, x / 4000), last_epoch=batches)
    else:
        scheduler = None
    while True:
        for x, y in loader:
            optimizer.zero_grad()
            torch.nn.functional.mse_loss(model(x), y).backward()
            optimizer.step()
            if scheduler is not None:
                scheduler.step()
            batches += 1
        epoch += 1
        state = {
            "model": model.state_dict(),
            "optimizer": optimizer.state_dict(),
            "batches": batches,
            "epoch": epoch,
        }
        torch.save(state, "last.pt")
