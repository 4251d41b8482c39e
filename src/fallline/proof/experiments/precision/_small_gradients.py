"""A small network whose gradients are tiny, trained under autocast: how many of them become zero?"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.functional import mse_loss

__all__ = ["gradients_under_autocast", "zero_share"]


def gradients_under_autocast(
    dtype: torch.dtype | None, *, factor: float, scale: float = 1.0
) -> list[Tensor]:
    """Each weight's gradient of a loss multiplied by `factor`, computed at this loss scale and unscaled; None is float32."""
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Linear(32, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 8)
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cpu", init_scale=scale, enabled=scale != 1.0)
    x, y = torch.randn(256, 32), torch.randn(256, 8)
    with torch.autocast("cpu", dtype=dtype, enabled=dtype is not None):
        loss = factor * mse_loss(model(x).float(), y)
    scaler.scale(loss).backward()
    scaler.unscale_(optimizer)
    return [p.grad for p in model.parameters() if p.grad is not None and p.dim() > 1]


def zero_share(gradients: list[Tensor]) -> float:
    """The share of values that are exactly zero."""
    values = torch.cat([g.reshape(-1) for g in gradients])
    return float((values == 0).double().mean())
