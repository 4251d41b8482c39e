"""A function at one point: its value and its slope, as autograd gives them."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable

import torch
from torch import Tensor

__all__ = ["nonfinite", "slope", "value", "words"]


def value(function: Callable[[Tensor], Tensor], at: float) -> float:
    return function(torch.tensor(at)).item()


def slope(function: Callable[[Tensor], Tensor], at: float) -> float:
    x = torch.tensor(at, requires_grad=True)
    function(x).backward()
    assert x.grad is not None
    return x.grad.item()


def words(number: float) -> float | str:
    """The number, or "nan", "inf", "-inf": JSON has no numbers for these."""
    return number if math.isfinite(number) else str(number)


def nonfinite(tensors: Iterable[Tensor | None]) -> int:
    """How many of the values in these tensors are NaN or infinite."""
    return sum(int((~torch.isfinite(t)).sum()) for t in tensors if t is not None)
