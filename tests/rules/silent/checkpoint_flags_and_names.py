# A flag is not an optimizer, an upscaler is not a GradScaler, and a function that takes the weights out of a file resumes nothing.
import torch


class Runner:
    def resume(self, checkpoint, resume_optimizer=True):
        checkpoint = torch.load(checkpoint)
        self.model.load_state_dict(checkpoint["model"])
        if "optimizer" in checkpoint and resume_optimizer:
            self.optimizer.load_state_dict(checkpoint["optimizer"])


def train(upscaler, loader, epochs, path, resume):
    upscaler_optimizer = torch.optim.AdamW(upscaler.parameters())
    first = 0
    if resume:
        checkpoint = torch.load(path, weights_only=True)
        upscaler.load_state_dict(checkpoint["upscaler"])
        upscaler_optimizer.load_state_dict(checkpoint["upscaler_optimizer"])
        first = checkpoint["epoch"] + 1
    for epoch in range(first, epochs):
        for x, y in loader:
            upscaler_optimizer.zero_grad()
            (upscaler(x) - y).square().mean().backward()
            upscaler_optimizer.step()
        checkpoint = {
            "epoch": epoch,
            "upscaler": upscaler.state_dict(),
            "upscaler_optimizer": upscaler_optimizer.state_dict(),
        }
        torch.save(checkpoint, path)


def embed(model, optimizer, loader, resume_str):
    for epoch in range(5):
        for x in loader:
            optimizer.zero_grad()
            model(x).mean().backward()
            optimizer.step()
    state = {"epoch": epoch, "weights": model.state_dict(), "optimizer": optimizer.state_dict()}
    torch.save(state, resume_str)


def trained_weights(resume_str):
    return torch.load(resume_str)["weights"]
