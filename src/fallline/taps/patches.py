"""Functions and methods replaced for a while, and put back."""

from __future__ import annotations

import functools
import sys
import types
from collections.abc import Callable
from typing import Any

__all__ = ["Patches", "Wrapped"]

Wrapped = Callable[..., Any]


class Patches:
    """What was put in place, and how to take it away again, last one first.

    `rebind`: functions that people import by name are replaced also where a module has done so already.
    """

    def __init__(self, *, rebind: bool = False) -> None:
        self._rebinds = rebind
        self._undo: list[Callable[[], None]] = []

    def remove(self) -> None:
        for undo in reversed(self._undo):
            undo()
        self._undo.clear()

    def patch(
        self, owner: Any, name: str, make: Callable[[Wrapped], Wrapped], *, imported: bool = False
    ) -> None:
        """Replace `owner.name` by `make(original)`. `imported`: a function that people import by name."""
        original = owner.__dict__[name] if isinstance(owner, type) else getattr(owner, name)
        wrapper = functools.wraps(original)(make(original))
        setattr(owner, name, wrapper)
        self._undo.append(lambda: _put_back(owner, name, wrapper, original))
        if imported and self._rebinds:
            self._rebind(original, wrapper)

    def on_removal(self, undo: Callable[[], None]) -> None:
        self._undo.append(undo)

    def _rebind(self, original: Wrapped, wrapper: Wrapped) -> None:
        """`from torch.nn.utils import clip_grad_norm_` came before us: reach those names too."""
        for module in list(sys.modules.values()):
            names = getattr(module, "__dict__", None)
            if (
                not isinstance(module, types.ModuleType)
                or names is None
                or module.__name__.startswith("fallline")
            ):
                continue
            for name, value in list(names.items()):
                if value is original:
                    names[name] = wrapper
                    self._undo.append(functools.partial(names.__setitem__, name, original))


def _put_back(owner: Any, name: str, wrapper: Wrapped, original: Wrapped) -> None:
    """Undo a patch, unless someone else has put theirs on top of ours since."""
    current = owner.__dict__.get(name) if isinstance(owner, type) else getattr(owner, name, None)
    if current is wrapper:
        setattr(owner, name, original)
