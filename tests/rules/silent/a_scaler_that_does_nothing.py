import torch
import torch.nn.functional as F


class DummyScaler:
    def scale(self, loss):
        return loss

    def unscale_(self, optimizer):
        pass

    def step(self, optimizer):
        optimizer.step()

    def update(self):
        pass


def scaler_for(device):
    return torch.amp.GradScaler("cuda") if device.type == "cuda" else DummyScaler()


def train(model, loader, device):
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    scaler = scaler_for(device)
    for x, y in loader:
        optimizer.zero_grad()
        with torch.amp.autocast(device.type, dtype=torch.float16):
            loss = F.cross_entropy(model(x), y)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
