"""Each fold has its own model and optimizer: what the last one left behind is not added to (FL212, FL211)."""

import torch
from models import build


def train_fold(loader):
    model = build("unet")
    optimizer = torch.optim.AdamW(model.parameters())
    scaler = torch.amp.GradScaler("cuda")
    for epoch in range(3):
        for x in loader:
            optimizer.zero_grad(set_to_none=True)
            with torch.autocast("cuda", dtype=torch.float16):
                loss = model(x).square().mean()
            scaler.scale(loss).backward()
            scaler.unscale_(optimizer)
            torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5)
            did_step = not any(torch.isnan(p.grad).any() for p in model.parameters())
            if did_step:
                scaler.step(optimizer)
            scaler.update()
        norm = sum(p.grad.norm().item() ** 2 for p in model.parameters()) ** 0.5
        print(norm)


def main(loaders):
    for fold in range(4):
        train_fold(loaders[fold])


if __name__ == "__main__":
    main(torch.load("loaders.pt"))
