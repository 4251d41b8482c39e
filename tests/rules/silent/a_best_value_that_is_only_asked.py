import os
import torch


def train(model, optimizer, loader, resume, epochs, path):
    start, best_loss = 0, float("inf")
    if resume:
        resumed = checkpoint = torch.load("last.pt", weights_only=True)
        model.load_state_dict(checkpoint["model"])
        if "optimizer" in resumed:
            optimizer.load_state_dict(resumed["optimizer"])
        start = resumed["step"]
        if os.path.exists(path):
            best_state = torch.load(path, weights_only=True)
            best_loss = best_state.get("best_loss", best_loss)
    for step in range(start, epochs):
        for x in loader:
            optimizer.zero_grad()
            loss = model(x).mean()
            loss.backward()
            optimizer.step()
        state = {
            "model": model.state_dict(),
            "optimizer": optimizer.state_dict(),
            "step": step,
            "best_loss": best_loss,
        }
        torch.save(state, "last.pt")
        if loss.item() < best_loss:
            best_loss = loss.item()
            torch.save(state, path)
