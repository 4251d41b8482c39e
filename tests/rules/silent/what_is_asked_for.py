# Labels of the shape of a prediction have no history, a scheduler that is None is none, and gradients that a hook keeps are what was wanted.
import torch
import torch.nn.functional as F


class Adversarial(torch.nn.Module):
    def __init__(self, discriminator):
        super().__init__()
        self.dis = discriminator

    def forward(self, fake):
        d_fake = self.dis(fake)
        label_real = torch.ones_like(d_fake)
        return F.binary_cross_entropy_with_logits(d_fake, label_real)


def save(epoch, model, optimizer):
    state = {"epoch": epoch, "model": model.state_dict(), "optimizer": optimizer.state_dict()}
    torch.save(state, f"{epoch}.pth")


def load(path, model, optimizer):
    state = torch.load(path)
    model.load_state_dict(state["model"])
    optimizer.load_state_dict(state["optimizer"])
    return state["epoch"] + 1


def train(loader, model, scheduler=None, start=1, epochs=100, optimizer=None):
    for epoch in range(start, epochs):
        for x, y in loader:
            optimizer.zero_grad()
            F.mse_loss(model(x), y).backward()
            optimizer.step()
        if scheduler:
            scheduler.step()
        save(epoch, model, optimizer)


def main(loader, model, path):
    optimizer = torch.optim.AdamW(model.parameters())
    start = load(path, model, optimizer)
    train(loader, model, None, start, 100, optimizer)


def pooled(model, inputs, labels, chosen):
    model.eval()
    model.zero_grad()
    model(inputs).gather(1, labels).sum().backward()
    kept = model.get_gradient()[labels == chosen]
    model.zero_grad()
    return kept.mean(dim=[0, 2, 3]).detach()
