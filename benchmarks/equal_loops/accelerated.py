"""The loop of Accelerate's documentation, with a switch for what is wrong with it."""

from __future__ import annotations

import sys

import torch
from accelerate import Accelerator
from equal_loops.plain import evaluate, net, pictures
from torch.nn import functional as F
from torch.utils.data import DataLoader

K = 4


def train(fault: str = "") -> None:
    """`accelerator.accumulate` divides the loss, leaves steps out and synchronises at the end."""
    torch.manual_seed(0)
    count = 1 if fault in ("undivided", "right by hand") else K
    accelerator = Accelerator(gradient_accumulation_steps=count, cpu=fault != "launched")
    short = fault in ("remainder", "right flush")
    model, optimizer, loader, held_out = _prepared(accelerator, 44 if short else 32)
    for _ in range(2):
        for i, (x, y) in enumerate(loader):
            with accelerator.accumulate(model):
                loss = F.cross_entropy(model(x), y)
                if fault in ("divided twice", "right by hand"):
                    loss = loss / K
                if fault == "by ranks twice":
                    loss = loss / accelerator.num_processes
                accelerator.backward(loss)
                if fault == "wiped" and i % K == 1:
                    model.zero_grad()
                if fault == "clip each":
                    torch.nn.utils.clip_grad_norm_(model.parameters(), 0.05)
                if fault == "right clip" and accelerator.sync_gradients:
                    accelerator.clip_grad_norm_(model.parameters(), 0.05)
                if fault == "scaled after clipping" and accelerator.sync_gradients:
                    accelerator.clip_grad_norm_(model.parameters(), 0.05)
                    for p in model.parameters():
                        assert p.grad is not None
                        p.grad /= K
                if count == K or (i + 1) % K == 0:
                    optimizer.step()
                    optimizer.zero_grad()
        name = "evaluation undivided" if fault == "evaluation undivided" else ""
        print(evaluate(model, held_out, name))


def counted(fault: str = "") -> None:
    """Reads all micro-batches of an update, divides by the count of all of them, and undoes what `accelerator.backward` divides by."""
    torch.manual_seed(0)
    accelerator = Accelerator(gradient_accumulation_steps=K, cpu=True)
    model, optimizer, loader, _ = _prepared(accelerator, 44)
    for _ in range(2):
        batches, left = iter(loader), len(loader)
        while left:
            window = [next(batches) for _ in range(min(K, left))]
            left -= len(window)
            total = sum(len(y) for _, y in window)
            for x, y in window:
                loss = F.cross_entropy(model(x), y, reduction="sum") / total
                accelerator.backward(loss if fault == "divided again" else loss * K)
            optimizer.step()
            optimizer.zero_grad()


def _prepared(accelerator: Accelerator, count: int) -> tuple:  # type: ignore[type-arg]
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    loader = DataLoader(pictures(count), batch_size=4, shuffle=True)
    return accelerator.prepare(model, optimizer, loader, DataLoader(pictures(24), batch_size=8))  # type: ignore[no-any-return]


LOOPS = {"train": train, "counted": counted}

if __name__ == "__main__":
    train(" ".join(sys.argv[1:]))
