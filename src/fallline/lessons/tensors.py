"""The tensors in what a script hands around: batches, arguments, optimizer state."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import nn

__all__ = ["tensors_in"]


def tensors_in(thing: Any, depth: int = 6) -> list[torch.Tensor]:
    """The tensors in nested lists, tuples, dictionaries and data classes."""
    if isinstance(thing, torch.Tensor):
        return [thing]
    if depth == 0 or isinstance(thing, str | bytes | int | float | None):
        return []
    if isinstance(thing, dict):
        parts: Iterable[Any] = thing.values()
    elif isinstance(thing, list | tuple):
        parts = thing
    elif hasattr(thing, "__dict__") and not isinstance(thing, type | nn.Module):
        parts = vars(thing).values()
    else:
        return []
    return [tensor for part in parts for tensor in tensors_in(part, depth - 1)]
