"""A small training script for benchmarks/diff.py. HIDDEN in the environment changes one thing that no option, file or line of code shows."""

import argparse
import os

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

HIDDEN = dict(part.split("=") for part in os.environ.get("HIDDEN", "").split(",") if part)


def hidden(name, otherwise):
    return type(otherwise)(HIDDEN.get(name, otherwise))


def jitter(tensor, size):
    """The same number, rounded differently each time, as a sum in a different order is."""
    seed = int.from_bytes(os.urandom(6), "big")
    random = torch.randn(tensor.shape, generator=torch.Generator().manual_seed(seed))
    return tensor * (1 + size * random.to(tensor.dtype))


class Mlp(nn.Module):
    def __init__(self, drop):
        super().__init__()
        self.body = nn.Linear(32, 64)
        self.drop = nn.Dropout(drop)
        self.mid = nn.Linear(64, 64)
        self.head = nn.Linear(64, 10)

    def forward(self, x):
        return self.head(F.relu(self.mid(self.drop(F.relu(self.body(x))))))


class Conv(nn.Module):
    def __init__(self, drop):
        super().__init__()
        self.body = nn.Conv2d(2, 16, 3, padding=1)
        self.norm = nn.BatchNorm2d(16)
        self.mid = nn.Conv2d(16, 16, 3)
        self.drop = nn.Dropout(drop)
        self.head = nn.Linear(64, 10)

    def forward(self, x):
        x = F.relu(self.norm(self.body(x.view(-1, 2, 4, 4))))
        return self.head(self.drop(F.relu(self.mid(x)).flatten(1)))


class Attention(nn.Module):
    def __init__(self, drop):
        super().__init__()
        self.body = nn.Linear(4, 32)
        self.mid = nn.TransformerEncoderLayer(32, 4, 64, drop, batch_first=True)
        self.head = nn.Linear(32, 10)

    def forward(self, x):
        return self.head(self.mid(self.body(x.view(-1, 8, 4))).mean(1))


class Recurrent(nn.Module):
    def __init__(self, drop):
        super().__init__()
        self.mid = nn.LSTM(4, 32, batch_first=True)
        self.drop = nn.Dropout(drop)
        self.head = nn.Linear(32, 10)

    def forward(self, x):
        return self.head(self.drop(self.mid(x.view(-1, 8, 4))[0][:, -1]))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--data", default="data.pt")
    parser.add_argument("--model", default="Mlp")
    parser.add_argument("--optimizer", default="AdamW")
    parser.add_argument("--updates", type=int, default=80)
    parser.add_argument("--lr", type=float, default=1e-3)
    parser.add_argument("--label-smoothing", type=float, default=0.0)
    parser.add_argument("--autocast", action="store_true")
    parser.add_argument("--config", default="")
    parser.add_argument("--out", default="")
    args = parser.parse_args()
    torch.manual_seed(hidden("seed", 0))
    data = torch.load(args.data)
    sampling = torch.Generator().manual_seed(hidden("order", 1))
    loader = DataLoader(
        TensorDataset(data["x"], data["y"]), hidden("batch", 32), shuffle=True, generator=sampling
    )
    model = globals()[args.model](hidden("dropout", 0.1))
    if "init" in HIDDEN:
        nn.init.normal_(model.mid.weight, 0, 0.2)
    if "dtype" in HIDDEN:
        model = model.to(getattr(torch, HIDDEN["dtype"]))
    kind = getattr(torch.optim, HIDDEN.get("optimizer", args.optimizer))
    more = {"weight_decay": hidden("decay", 0.01)}
    if kind is torch.optim.AdamW:
        more["betas"] = (0.9, hidden("beta", 0.999))
    head = {id(p) for p in model.head.parameters()}
    rate = hidden("lr", args.lr)
    groups = [
        {"params": [p for p in model.parameters() if id(p) not in head]},
        {"params": list(model.head.parameters()), "lr": rate * hidden("head", 1.0)},
    ]
    optimizer = kind(groups, lr=rate, **more)
    warm = hidden("warm", 10)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda u: min(1.0, (u + 1) / warm))
    smoothing = hidden("smoothing", args.label_smoothing)
    if args.config:
        with open(args.config) as file:
            smoothing = float(file.read().partition("smoothing:")[2])
    noise = float(os.environ.get("NOISE", "0"))
    if noise:
        for parameter in model.parameters():
            parameter.register_hook(lambda g: jitter(g, noise))
    update = 0
    while update < args.updates:
        for x, y in loader:
            if "dtype" in HIDDEN:
                x = x.to(getattr(torch, HIDDEN["dtype"]))
            pieces = hidden("pieces", 1)
            for px, py in zip(x.chunk(pieces), y.chunk(pieces), strict=True):
                low = args.autocast or "autocast" in HIDDEN
                with torch.autocast("cpu", torch.bfloat16, enabled=low):
                    out = model(px)
                    if noise and os.environ.get("FORWARD"):
                        out = jitter(out, noise)
                    loss = F.cross_entropy(out.float(), py, label_smoothing=smoothing)
                (loss / pieces).backward()
            if update == hidden("doubled", -1):
                model.mid.weight.grad.mul_(2)
            nn.utils.clip_grad_norm_(model.parameters(), hidden("clip", 1.0))
            optimizer.step()
            optimizer.zero_grad()
            schedule.step()
            update += 1
            if update == hidden("frozen", -1):
                model.mid.requires_grad_(False)
            if update == args.updates:
                break
    print(f"loss {loss.item():.6f}")


if __name__ == "__main__":
    main()
