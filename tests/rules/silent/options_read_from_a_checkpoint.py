import argparse

import torch


def train(opt, model, loader):
    optimizer = torch.optim.Adam(model.parameters())
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda epoch: 0.9**epoch)
    start = 0
    if opt.resume:
        checkpoint = torch.load(opt.weights)
        model.load_state_dict(checkpoint["model"])
        optimizer.load_state_dict(checkpoint["optimizer"])
        start = checkpoint["epoch"] + 1
    scheduler.last_epoch = start - 1
    for epoch in range(start, opt.epochs):
        for x in loader:
            optimizer.zero_grad()
            model(x).mean().backward()
            optimizer.step()
        scheduler.step()
        state = {
            "epoch": epoch,
            "model": model.state_dict(),
            "optimizer": optimizer.state_dict(),
            "opt": vars(opt),
        }
        torch.save(state, "last.pt")


def main(opt, model, loader):
    if opt.resume:
        opt = argparse.Namespace(**torch.load(opt.resume)["opt"])
        opt.resume = True
    train(opt, model, loader)
