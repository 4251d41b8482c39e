import torch


def main(args, model, loader, evaluate):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    start = 0
    if args.resume:
        checkpoint = torch.load(args.resume)
        start = checkpoint["epoch"]
        model.load_state_dict(checkpoint["model"])
        optimizer.load_state_dict(checkpoint["optimizer"])
    best_acc = evaluate(model) if start else 0.0
    for epoch in range(start, args.epochs):
        model.train()
        for x, y in loader:
            optimizer.zero_grad()
            torch.nn.functional.cross_entropy(model(x), y).backward()
            optimizer.step()
        accuracy = evaluate(model)
        is_best = accuracy > best_acc
        best_acc = max(accuracy, best_acc)
        state = {
            "epoch": epoch + 1,
            "model": model.state_dict(),
            "optimizer": optimizer.state_dict(),
            "best_acc": best_acc,
        }
        torch.save(state, "last.pt")
        if is_best:
            torch.save(model.state_dict(), "best.pt")
