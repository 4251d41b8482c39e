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
        self._patched: list[_Patch] = []

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
            self._rebind(patched.original, patched.wrapper)

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
                    self._undo.append(functools.partial(_put_back, names, name, wrapper, original))


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
