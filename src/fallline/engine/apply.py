"""From measured gradients to stepped parameters: one multiply and a step, or both inside the optimizer's own kernel."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from fallline.engine.clipping import Measured, MeasuredByKernel
from fallline.engine.precision import Precision

__all__ = ["can_fuse", "step_fused", "step_plain"]


# Before, GradScaler.step put its own scale, or none, in place of the one that an optimizer has already.
_SCALER_KEEPS_SCALE = tuple(map(int, torch.__version__.split(".")[:2])) >= (2, 6)


def can_fuse(
    optimizers: Sequence[Optimizer],
    grads: Sequence[Tensor],
    groups: tuple[int, ...],
    precision: Precision,
) -> bool:
    """Whether the optimizers' own kernels multiply and skip, so that gradients are never rewritten: they have one scalar, a float32."""
    return (
        (precision.scaler is None or _SCALER_KEEPS_SCALE)
        and all([getattr(o, "_step_supports_amp_scaling", False) for o in optimizers])
        and groups[-1] == 0
        and all(g.dtype is not torch.float64 for g in grads)
    )


def step_fused(optimizers: Sequence[Optimizer], measured: Measured | MeasuredByKernel, found_inf: bool | Tensor, precision: Precision) -> bool | Tensor:  # fmt: skip
    """Leave the multiply and the skipping to the fused step. Says, where the gradients are, whether it was applied."""
    inverse = measured.inverse
    if inverse is None:  # from a CPU
        multiplier = float(measured.multipliers[0])
        inverse = (
            None
            if multiplier == 1.0
            else torch.tensor(1.0 / multiplier if multiplier else math.inf)
        )
    found = found_inf if isinstance(found_inf, Tensor) else torch.tensor(float(found_inf))
    if precision.scaler is not None:
        precision.record(optimizers, found)
    optimizer: Any  # torch's contract with its fused optimizers is two attributes that the type does not have
    for optimizer in optimizers:
        optimizer.grad_scale = inverse
        if precision.scaler is not None:
            precision.scaler.step(optimizer)
            continue
        optimizer.found_inf = found
        optimizer.step()
        del optimizer.grad_scale, optimizer.found_inf
    return found == 0 if isinstance(found_inf, Tensor) else not found_inf


def step_plain(
    optimizers: Sequence[Optimizer],
    grads: list[Tensor],
    groups: tuple[int, ...],
    measured: Measured | MeasuredByKernel,
    found_inf: bool | Tensor,
    precision: Precision,
    finish: Callable[[list[Tensor]], None] | None,
) -> bool:
    """Multiply the gradients once, finish them (clip by value, noise), and step, unless they are not finite."""
    found = bool(found_inf)  # waits for the device: torch's plain optimizers cannot skip there
    if not found:
        measured.scale(grads, groups)
        if finish is not None:
            finish(grads)
    if precision.scaler is not None:
        precision.record(
            optimizers, found_inf if isinstance(found_inf, Tensor) else torch.tensor(float(found))
        )
    for optimizer in optimizers:
        if precision.scaler is not None:
            precision.scaler.step(optimizer)  # skips by what was recorded
        elif not found:
            optimizer.step()
    return not found
