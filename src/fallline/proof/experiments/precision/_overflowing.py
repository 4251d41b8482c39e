"""A run under autocast in which some batches overflow float16 in the forward pass."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn
from torch.nn.functional import mse_loss

from fallline.proof.experiments._training import flat

__all__ = ["UPDATES", "Amp", "overflowing"]

UPDATES = 100


@dataclass
class Amp:
    """What a run with a scaler did."""

    skipped: list[bool] = field(default_factory=list)  # for each update
    scales: list[float] = field(default_factory=list)  # after each update
    moved: float = 0.0  # from the first weights to the last


def overflowing(dtype: torch.dtype, *, every: int, **scaling: Any) -> Amp:
    """100 updates; in every `every`-th batch activations reach 1e5, above float16's 65504 (0: in none)."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    scaler = torch.amp.GradScaler("cpu", **scaling)
    start = flat(model.parameters())
    run = Amp()
    for i in range(UPDATES):
        x = torch.randn(32, 8)
        y = x[:, :1].clone()
        if every and (i + 1) % every == 0:
            x = x * 1e5
        with torch.autocast("cpu", dtype=dtype):
            loss = mse_loss(model(x).float().tanh(), y)
        before, scale = flat(model.parameters()), scaler.get_scale()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
        run.skipped.append(scaler.get_scale() < scale)
        run.scales.append(scaler.get_scale())
        assert not run.skipped[-1] or torch.equal(before, flat(model.parameters()))
    run.moved = float((flat(model.parameters()) - start).norm())
    return run
