"""`optimizer.zero_grad()`, without its ceremony where nobody would miss it."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

import torch
from torch.optim import Optimizer

__all__ = ["forget_gradients", "torchs_own"]


def forget_gradients(optimizers: Sequence[Optimizer]) -> None:
    """Set the gradients of all parameters to None.

    torch's own method does the same after 15 microseconds of preparation. One that somebody wrote, or that somebody
    listens to (`fallline run` does), is called.
    """
    for optimizer in optimizers:
        if type(optimizer).zero_grad is not _TORCHS or "zero_grad" in optimizer.__dict__:
            optimizer.zero_grad()
            continue
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                parameter.grad = None


def torchs_own(method: Any) -> Any:
    """torch's own function, below whatever was put around it before this module was imported."""
    torchs = os.path.dirname(torch.__file__) + os.sep
    while method is not None:
        code = getattr(method, "__code__", None)
        if code is not None and code.co_filename.startswith(torchs):
            return method
        method = getattr(method, "__wrapped__", None)
    return None


_TORCHS = torchs_own(Optimizer.zero_grad)
