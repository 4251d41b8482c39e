"""Plain data: what `torch.load(weights_only=True)` reads back, checked when it is saved and not when it is needed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from fallline.errors import EngineError

__all__ = ["plain"]

_SAFE = {bool, int, float, complex, str, bytes, torch.dtype, torch.device, torch.Size}


def plain(value: Any, where: str) -> Any:
    """The same value in types that load safely; numpy's become Python's and torch's. An error says what cannot be."""
    if value is None or type(value) in _SAFE:
        return value
    if isinstance(value, Tensor):
        return value.detach()
    if isinstance(value, Mapping):
        return {plain(k, where): plain(v, f"{where}.{k}" if where else str(k)) for k, v in value.items()}  # fmt: skip
    if isinstance(value, (list, tuple)):
        items = [plain(v, f"{where}[{i}]") for i, v in enumerate(value)]
        return items if isinstance(value, list) else tuple(items)
    if isinstance(value, set):
        return {plain(v, where) for v in value}
    if type(value).__module__ == "numpy":
        return torch.from_numpy(value.copy()) if getattr(value, "shape", ()) else value.item()
    for base in (int, float, str):  # an enum, for one, is saved as what it is underneath
        if isinstance(value, base):
            return base(value)
    raise EngineError(
        f"{where} holds a {type(value).__module__}.{type(value).__qualname__}, which cannot be loaded without running code from the file: "
        "keep numbers, text, tensors, lists and dicts in a state_dict"
    )
