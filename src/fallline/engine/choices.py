"""Options of a Stepper that cannot be right, refused before the first update."""

from __future__ import annotations

from typing import Any

import torch

from fallline.engine.clipping import check_threshold
from fallline.errors import EngineError

__all__ = ["check_choices"]


def check_choices(clip_norm: float | None, clip_value: float | None, nonfinite: str, reduction: str | None, optimizers: list[Any]) -> None:  # fmt: skip
    if clip_norm is not None and clip_value is not None:
        raise EngineError(
            "clip_norm and clip_value are both given, and their order changes the result: choose one"
        )
    if clip_norm is not None:
        check_threshold("clip_norm", clip_norm)
    if clip_value is not None:
        check_threshold("clip_value", clip_value)
    if nonfinite not in ("skip", "raise", "apply"):
        raise EngineError(f'nonfinite={nonfinite!r} is not known: use "skip", "raise" or "apply"')
    if reduction not in (None, "mean", "sum", "none"):
        raise EngineError(f'reduction={reduction!r} is not known: use "mean", "sum" or "none"')
    for optimizer in optimizers:
        if isinstance(optimizer, torch.optim.LBFGS):
            raise EngineError(
                "LBFGS recomputes its gradients inside step(closure), past any clipping or accumulation: step it yourself"
            )
