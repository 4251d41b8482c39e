"""Train the same small model with an update written in different ways, and see what each way did.

    def clipped_after(t: Trainee, window: Window) -> None:
        for x, y in window:
            t.loss(x, y).backward()
        t.optimizer.step()
        clip_grad_norm_(t.model.parameters(), 1.0)
        t.optimizer.zero_grad()

    wrong = train(clipped_after, lr=0.1)

Model, data and seed are the same in every run, so whatever differs comes from the update.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils import clip_grad_norm_

from fallline.proof.experiments._tasks import Batch, regression

__all__ = [
    "Run",
    "Trainee",
    "Update",
    "Window",
    "beyond",
    "clipped",
    "cosine",
    "flat",
    "gradient",
    "largest",
    "off",
    "plain",
    "train",
    "uncleared",
]

Window = list[Batch]  # the micro-batches of one update


@dataclass
class Trainee:
    """What an update works with."""

    model: nn.Module
    optimizer: torch.optim.Optimizer
    scaler: torch.amp.GradScaler
    number: int = 0  # of the update, from 0

    def loss(self, x: Tensor, y: Tensor) -> Tensor:
        return F.mse_loss(self.model(x), y)


Update = Callable[[Trainee, Window], None]


@dataclass
class Run:
    """What the updates of one way did."""

    losses: list[float] = field(
        default_factory=list
    )  # over all data: at the start, then after each update
    gradients: list[Tensor] = field(default_factory=list)  # what each step was given, flat
    moves: list[Tensor] = field(default_factory=list)  # how each update moved the parameters, flat
    parameters: Tensor = field(default_factory=lambda: torch.empty(0))  # where they ended, flat

    @property
    def norms(self) -> list[float]:
        return [g.norm().item() for g in self.gradients]

    @property
    def steps(self) -> list[float]:
        return [m.norm().item() for m in self.moves]


def train(
    update: Update,
    *,
    updates: int = 40,
    k: int = 1,
    optimizer: Callable[..., torch.optim.Optimizer] = torch.optim.SGD,
    lr: float = 0.05,
    outlier_at: int | None = None,
    seed: int = 0,
    **scaler: Any,
) -> Run:
    """`updates` windows of k micro-batches; the targets of the window `outlier_at` are a hundred times too large."""
    model, windows = regression(updates=updates, k=k, seed=seed)
    all_x, all_y = (
        torch.cat(parts) for parts in zip(*(b for w in windows for b in w), strict=True)
    )
    if outlier_at is not None:
        windows[outlier_at] = [(x, 100 * y) for x, y in windows[outlier_at]]
    trainee = Trainee(
        model, optimizer(model.parameters(), lr=lr), torch.amp.GradScaler("cpu", **scaler)
    )
    run = Run()

    def given(*_: object) -> None:
        run.gradients.append(gradient(model))

    def look() -> None:
        with torch.no_grad():
            run.losses.append(trainee.loss(all_x, all_y).item())

    trainee.optimizer.register_step_pre_hook(given)
    look()
    before = flat(model.parameters())
    for number, window in enumerate(windows):
        trainee.number = number
        update(trainee, window)
        after = flat(model.parameters())
        run.moves.append(after - before)
        before = after
        look()
    run.parameters = before
    return run


def plain(t: Trainee, window: Window) -> None:
    """The update as it should be, without clipping."""
    for x, y in window:
        (t.loss(x, y) / len(window)).backward()
    t.optimizer.step()
    t.optimizer.zero_grad()


def clipped(max_norm: float) -> Update:
    """The update as it should be, clipped once, between the last backward and the step."""

    def update(t: Trainee, window: Window) -> None:
        for x, y in window:
            (t.loss(x, y) / len(window)).backward()
        clip_grad_norm_(t.model.parameters(), max_norm)
        t.optimizer.step()
        t.optimizer.zero_grad()

    return update


def uncleared(t: Trainee, window: Window) -> None:
    """No `zero_grad`: old gradients stay and new ones are added to them."""
    for x, y in window:
        t.loss(x, y).backward()
    t.optimizer.step()


def flat(tensors: Any) -> Tensor:
    """A copy of all values, one after the other."""
    return torch.cat([t.detach().reshape(-1).clone() for t in tensors])


def gradient(model: nn.Module) -> Tensor:
    """All of the model's gradients, one after the other; none counts as zero."""
    return flat(torch.zeros_like(p) if p.grad is None else p.grad for p in model.parameters())


def cosine(a: Tensor, b: Tensor) -> float:
    """1 where both point the same way."""
    return float(F.cosine_similarity(a.double(), b.double(), dim=0))


def off(a: Tensor, truth: Tensor) -> float:
    """How far `a` is from the truth, as a share of the truth's length."""
    return float((a - truth).norm() / truth.norm())


def largest(a: Tensor, b: Tensor) -> float:
    """The largest difference between two values; 0.0 where every bit is the same."""
    return float((a - b).abs().max())


def beyond(value: float, limit: float) -> str:
    """A value in words: one that runs away differs from machine to machine, so only that it passed the limit is said."""
    return f"{value:.2g}" if value <= limit else f"more than {limit:g}"
