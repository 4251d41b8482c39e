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

    `rebind`: functions that people import by name are replaced also where a module has done so already, with `reach_names()`
    once everything is patched.
    """

    def __init__(self, *, rebind: bool = False) -> None:
        self._rebinds = rebind
        self._undo: list[Callable[[], None]] = []
        self._patched: list[_Patch] = []
        self._instead: dict[int, tuple[Wrapped, Wrapped]] = {}

    def remove(self) -> None:
        for undo in reversed(self._undo):
            undo()
        self._undo.clear()

    def patch(
        self, owner: Any, name: str, make: Callable[[Wrapped], Wrapped], *, imported: bool = False
    ) -> None:
        """Replace `owner.name` by `make(original)`. `imported`: a function that people import by name."""
        patched = _Patch(owner, name, make)
        self._undo.append(patched.lift)
        if not imported:  # who has imported it by name would keep the wrapper
            self._patched.append(patched)
        elif self._rebinds:
            self._instead[id(patched.original)] = (patched.original, patched.wrapper)

    def lift(self) -> None:
        """Out of the way for a while: the originals are in their places."""
        for patched in reversed(self._patched):
            patched.lift()

    def lay(self) -> None:
        """In place again."""
        for patched in self._patched:
            patched.lay()

    def on_removal(self, undo: Callable[[], None]) -> None:
        self._undo.append(undo)

    def reach_names(self) -> None:
        """`from torch.nn.utils import clip_grad_norm_` came before us: reach those names too, all with one look at the modules."""
        for module in list(sys.modules.values()) if self._instead else ():
            names = getattr(module, "__dict__", None)
            if not isinstance(module, types.ModuleType) or names is None:
                continue
            if self._instead.keys().isdisjoint(map(id, list(names.values()))):
                continue
            if module.__name__.startswith("fallline"):
                continue
            for name, value in list(names.items()):
                if id(value) in self._instead:
                    names[name] = wrapper = self._last(value)
                    self._undo.append(functools.partial(_put_back, names, name, wrapper, value))
        self._instead.clear()

    def _last(self, function: Any) -> Any:
        """A function may have been patched more than once."""
        while id(function) in self._instead:
            function = self._instead[id(function)][1]
        return function


def _put_back(names: dict[str, Any], name: str, wrapper: Wrapped, original: Wrapped) -> None:
    """Unless the name means something else by now."""
    if names.get(name) is wrapper:
        names[name] = original


class _Patch:
    """One function or method that is replaced."""

    def __init__(self, owner: Any, name: str, make: Callable[[Wrapped], Wrapped]) -> None:
        self._owner, self._name, self._make = owner, name, make
        self._lifted = True
        self._wrap(self._current())

    def _current(self) -> Any:
        owner, name = self._owner, self._name
        return owner.__dict__.get(name) if isinstance(owner, type) else getattr(owner, name, None)

    def _wrap(self, original: Any) -> None:
        self.original = original
        self.wrapper = functools.wraps(original)(self._make(original))
        self.lay()

    def lift(self) -> None:
        """The original is there again, unless someone else has put theirs on top of ours since."""
        if self._current() is self.wrapper:
            setattr(self._owner, self._name, self.original)
            self._lifted = True

    def lay(self) -> None:
        """In place again, around what someone else may have put there meanwhile."""
        if self._lifted:
            current = self._current()
            if current is not self.original:
                self._wrap(current)
                return
            setattr(self._owner, self._name, self.wrapper)
            self._lifted = False
