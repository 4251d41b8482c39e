"""What an injected fault is, and the loop that it is injected into."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils import clip_grad_norm_

from watcher.matrix.architectures import Architecture

__all__ = ["FAULTS", "Fault", "adam", "body", "fault", "outputs_of", "sgd", "train"]


@dataclass(frozen=True)
class Fault:
    """`codes`: any of these is a right answer; `at`: the update that makes the mistake."""

    name: str
    codes: frozenset[str]
    train: Callable[[Architecture], None]
    at: int = 0
    without: frozenset[str] = frozenset()  # architectures in which it is not a fault


FAULTS: dict[str, Fault] = {}


def fault(
    *codes: str, at: int = 0, without: str = ""
) -> Callable[[Callable[[Architecture], None]], Callable[[Architecture], None]]:
    def register(train: Callable[[Architecture], None]) -> Callable[[Architecture], None]:
        name = train.__name__.replace("_", "-")
        FAULTS[name] = Fault(name, frozenset(codes), train, at, frozenset(without.split()))
        return train

    return register


def sgd(model: nn.Module, lr: float = 0.05) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=lr)


def adam(model: nn.Module, lr: float = 3e-3) -> torch.optim.Optimizer:
    return torch.optim.Adam(model.parameters(), lr=lr)


def outputs_of(arch: Architecture) -> int:
    return 1 if arch.name == "lstm" else 4


def body(model: nn.Module) -> list[nn.Module]:
    """The layers with matrices, from the input on."""
    return [m for m in model.modules() if isinstance(m, nn.Linear | nn.Conv2d | nn.LSTM)]


def train(
    arch: Architecture,
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    updates: int = 120,
    *,
    before: Callable[[int], Any] | None = None,
    batch: Callable[[int], tuple[Tensor, Tensor]] | None = None,
    weight: Callable[[int], float] | None = None,
    clip: float | None = None,
) -> None:
    """The healthy loop, with places where one thing can go wrong."""
    for update in range(updates):
        if before is not None:
            before(update)
        x, y = batch(update) if batch is not None else arch.batch(32)
        loss = arch.loss(model(x), y)
        if weight is not None:
            loss = loss * weight(update)
        optimizer.zero_grad()
        loss.backward()
        if clip is not None:
            clip_grad_norm_(model.parameters(), clip)
        optimizer.step()
