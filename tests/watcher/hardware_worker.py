"""For one rank of `test_sharded`: training loops on healthy and on broken hardware, each bare and then checked."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

import fallline

UPDATES, EVERY, BAD = 24, 4, 15  # update 15 is one that is checked


class Flaky(nn.Module):
    """A processor that adds a little of its own, from whichever update on, on these ranks."""

    def __init__(self, ranks: tuple[int, ...]) -> None:
        super().__init__()
        self.layer = nn.Linear(16, 16)
        self.ranks = ranks

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.layer(x)
        if dist.get_rank() in self.ranks:
            found = found + 1e-3 * int.from_bytes(os.urandom(1), "big")
        return found


def net(*middle: nn.Module) -> nn.Module:
    return nn.Sequential(nn.Linear(8, 16), nn.ReLU(), *middle, nn.Linear(16, 1))


def flipped(tensor: torch.Tensor) -> None:
    tensor.detach().view(-1).view(torch.int32)[0] ^= 1 << 20


def loss_of(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
    return nn.functional.mse_loss(model(x), x[:, :1])


def plain(
    model: nn.Module, optimizer: Any, batches: Any, hurt: Callable[[int, nn.Module, str], None]
) -> list[float]:
    losses = []
    for update, x in enumerate(batches):
        optimizer.zero_grad()
        loss = loss_of(model, x)
        loss.backward()
        losses.append(loss.item())
        hurt(update, model, "memory")
        optimizer.step()
    return losses


def accumulated(model: nn.Module, optimizer: Any, batches: Any, hurt: Any) -> list[float]:
    losses = []
    for first in batches:
        optimizer.zero_grad()
        for x in (first, first * 0.5):
            with torch.autocast("cpu", torch.bfloat16):
                loss = loss_of(model, x) / 2
            loss.backward()
            losses.append(loss.item())
        nn.utils.clip_grad_norm_(model.parameters(), 0.1)
        optimizer.step()
    return losses


def healthy(update: int, model: nn.Module, where: str) -> None:
    pass


def weight_flips(update: int, model: nn.Module, where: str) -> None:
    if update == BAD and dist.get_rank() == 1:
        flipped(next(model.parameters()))


def gradient_flips(update: int, model: nn.Module, where: str) -> None:
    gradient = next(model.parameters()).grad
    if update == BAD and dist.get_rank() == 1 and gradient is not None:
        flipped(gradient)


class BackwardFlips:
    """In the backward pass itself: once, in the gradient of the first weight."""

    def __init__(self) -> None:
        self.passes = 0

    def attach(self, model: nn.Module) -> None:
        if dist.get_rank() == 1:
            next(model.parameters()).register_hook(self)

    def __call__(self, gradient: torch.Tensor) -> torch.Tensor | None:
        self.passes += 1
        if self.passes != BAD + 1 + BAD // EVERY:  # each check is a pass of its own
            return None
        other = gradient.clone()
        flipped(other)
        return other


CASES: dict[str, tuple[Callable[[], nn.Module], Any, Any]] = {
    "weight flips": (net, plain, weight_flips),
    "gradient flips": (net, plain, gradient_flips),
    "backward flips": (net, plain, BackwardFlips),
    "forward does not repeat": (lambda: net(Flaky((1,))), plain, healthy),
    "right": (net, plain, healthy),
    "right, dropout": (lambda: net(nn.Dropout(0.3)), plain, healthy),
    "right, batch norm": (lambda: net(nn.BatchNorm1d(16)), plain, healthy),
    "right, accumulated and clipped in bfloat16": (net, accumulated, healthy),
    "right, no rank repeats": (lambda: net(Flaky((0, 1))), plain, healthy),
}


def train(case: str, folder: Path | None) -> tuple[list[float], list[Any]]:
    make, loop, hurt = CASES[case]
    torch.manual_seed(0)
    model = nn.parallel.DistributedDataParallel(make())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    torch.manual_seed(1 + dist.get_rank())
    batches = [torch.randn(16, 8) for _ in range(UPDATES)]
    if hurt is BackwardFlips:
        BackwardFlips().attach(model)
        hurt = healthy
    if folder is None:
        return loop(model, optimizer, batches, hurt), []
    watching = fallline.watch(model, optimizer, out=folder, check_hardware=EVERY)
    losses = loop(model, optimizer, batches, hurt)
    losses += [float(p.detach().sum()) for p in model.parameters()] + [float(torch.rand(1))]
    dist.barrier()
    found = watching.stop()
    return losses, [
        [f.code, f.at.line, f.evidence.get("step"), f.evidence.get("rank"), f.message]
        for f in found
    ]


def cases(out: Path) -> dict[str, Any]:
    """Every case, bare and checked."""
    result: dict[str, Any] = {}
    for case in CASES:
        bare, _ = train(case, None)
        seen, found = train(case, out / case.replace(" ", "-"))
        result[case] = {"found": found, "same": bare == seen[: len(bare)]}
    return result
