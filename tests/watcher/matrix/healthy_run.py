"""How a healthy run is written down."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils import clip_grad_norm_

__all__ = ["HEALTHY", "adam", "classify", "healthy", "update"]

HEALTHY: dict[str, Callable[[], None]] = {}


def healthy(train: Callable[[], None]) -> Callable[[], None]:
    HEALTHY[train.__name__.replace("_", "-")] = train
    return train


def adam(model: nn.Module, lr: float = 3e-3) -> torch.optim.Optimizer:
    return torch.optim.Adam(model.parameters(), lr=lr)


def update(
    optimizer: torch.optim.Optimizer, loss: Tensor, clip: Any = None, limit: float = 1.0
) -> None:
    optimizer.zero_grad()
    loss.backward()
    if clip is not None:
        clip_grad_norm_(clip.parameters(), limit)
    optimizer.step()


def classify(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
    return F.cross_entropy(model(batch[0]), batch[1])
