"""Small seeded tasks that several experiments train on."""

from __future__ import annotations

import torch
from torch import Tensor, nn

__all__ = ["regression"]

Batch = tuple[Tensor, Tensor]


def regression(
    *, updates: int, k: int = 1, batch: int = 16, seed: int = 0
) -> tuple[nn.Module, list[list[Batch]]]:
    """A two-layer network and `updates` windows of k micro-batches from a noisy linear teacher."""
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(8, 32), nn.Tanh(), nn.Linear(32, 1))
    teacher = torch.randn(8, 1)
    windows = []
    for _ in range(updates):
        x = torch.randn(k, batch, 8)
        y = x @ teacher + 0.1 * torch.randn(k, batch, 1)
        windows.append(list(zip(x, y, strict=True)))
    return model, windows
