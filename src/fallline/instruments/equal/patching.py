"""Patches whose functions are also replaced where a module has imported them by name, all with one look at the modules."""

from __future__ import annotations

import functools
import sys
import types
from typing import Any

from fallline.taps.patches import Patches, Wrapped

__all__ = ["RebindingPatches"]


class RebindingPatches(Patches):
    """`reach_names()` once everything is patched: a look at all modules costs more than a small update."""

    def __init__(self) -> None:
        super().__init__(rebind=True)
        self._instead: dict[int, tuple[Wrapped, Wrapped]] = {}

    def _rebind(self, original: Wrapped, wrapper: Wrapped) -> None:
        self._instead[id(original)] = (original, wrapper)

    def reach_names(self) -> None:
        for module in list(sys.modules.values()):
            names = getattr(module, "__dict__", None)
            if not isinstance(module, types.ModuleType) or names is None:
                continue
            if module.__name__.startswith("fallline"):
                continue
            found = [(n, v) for n, v in names.items() if id(v) in self._instead]
            for name, value in found:
                names[name] = self._last(value)
                self._undo.append(functools.partial(names.__setitem__, name, value))
        self._instead.clear()

    def _last(self, function: Any) -> Any:
        """A function may have been patched more than once."""
        while id(function) in self._instead:
            function = self._instead[id(function)][1]
        return function
