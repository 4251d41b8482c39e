"""The weights that a run starts from are written down once: nobody goes on from them. Each epoch writes everything."""

import torch


def main(args, model, loader):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    start_epoch = 0
    torch.save({"epoch": start_epoch, "state_dict": model.state_dict()}, f"{args.folder}/0.pth")
    if args.resume:
        state = torch.load(args.resume)
        model.load_state_dict(state["state_dict"])
        optimizer.load_state_dict(state["optimizer"])
        start_epoch = state["epoch"]
    for epoch in range(start_epoch, args.epochs):
        for x, y in loader:
            optimizer.zero_grad()
            torch.nn.functional.cross_entropy(model(x), y).backward()
            optimizer.step()
        state = {
            "epoch": epoch + 1,
            "state_dict": model.state_dict(),
            "optimizer": optimizer.state_dict(),
        }
        torch.save(state, f"{args.folder}/{epoch + 1}.pth")
