"""The same update in float64: the nearest to the truth that a model can compute."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from fallline.instruments.equal.feed import LOSSES
from fallline.taps.patches import Patches, Wrapped

__all__ = ["in_double"]


def in_double(patches: Patches) -> None:
    """Models become float64 when they are first called, with the values they have; so does what they and losses are given."""
    known: set[int] = set()
    depth = [0]

    def call(original: Wrapped) -> Wrapped:
        def __call__(self: Any, *args: Any, **kwargs: Any) -> Any:
            if not depth[0]:
                if id(self) not in known:
                    known.add(id(self))
                    nn.Module.double(self)
                args, kwargs = _wide(args), _wide(kwargs)
            depth[0] += 1
            try:
                return original(self, *args, **kwargs)
            finally:
                depth[0] -= 1

        return __call__

    def loss(original: Wrapped) -> Wrapped:
        return lambda *args, **kwargs: original(*_wide(args), **_wide(kwargs))

    patches.patch(nn.Module, "__call__", call)
    for name in LOSSES:
        if hasattr(functional, name):
            patches.patch(functional, name, loss, imported=True)


def _wide(thing: Any) -> Any:
    match thing:
        case Tensor():
            return thing.double() if thing.dtype == torch.float32 else thing
        case dict():
            return {name: _wide(value) for name, value in thing.items()}
        case list() | tuple() if not hasattr(thing, "_fields"):
            return type(thing)(_wide(value) for value in thing)
    return thing
