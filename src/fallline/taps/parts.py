"""Steps that are parts of another one, and are not published themselves.

An optimizer that was made by another one's constructor (ZeroRedundancyOptimizer) steps while that one does. DeepSpeed steps one
optimizer once for each group of parameters, which makes one step.
"""

from __future__ import annotations

import weakref
from sys import _getframe
from types import FrameType

from torch.optim import Optimizer

__all__ = ["Whole"]


class Whole:
    """Which steps are under way in this process."""

    def __init__(self) -> None:
        self._made_by: dict[int, tuple[weakref.ref[Optimizer], weakref.ref[Optimizer]]] = {}
        self._stepping: set[int] = set()
        self.joins = False  # the steps that are made now are one
        self._joined = False  # some were
        self.first: tuple[Optimizer, FrameType] | None = None  # of those, and where it was called

    @property
    def plain(self) -> bool:
        """Every step so far was one of its own."""
        return not self._made_by and not self._joined

    def made(self, optimizer: Optimizer) -> None:
        """Perhaps by the constructor of another one, which is still running."""
        frame: FrameType | None = _getframe(2)
        while frame is not None:
            if frame.f_code.co_name == "__init__":
                maker = frame.f_locals.get("self")
                if isinstance(maker, Optimizer) and maker is not optimizer:
                    self._made_by[id(optimizer)] = (weakref.ref(optimizer), weakref.ref(maker))
                    return
            frame = frame.f_back

    def begins(self, optimizer: Optimizer) -> bool:
        """False: a part of a step that is under way."""
        if self._made_by:
            if self._is_part(optimizer):
                return False
            self._stepping.add(id(optimizer))
        return not self.joins or self.first is None

    def ends(self, optimizer: Optimizer) -> bool:
        """False: a part of a step that is under way."""
        if self._made_by:
            if self._is_part(optimizer):
                return False
            self._stepping.discard(id(optimizer))
        return not self.joins

    def _is_part(self, optimizer: Optimizer) -> bool:
        known = self._made_by.get(id(optimizer))
        if known is None or known[0]() is not optimizer:
            return False
        maker = known[1]()
        return maker is not None and id(maker) in self._stepping

    def join(self) -> tuple[bool, tuple[Optimizer, FrameType] | None]:
        """Steps are one from here on; what was so before."""
        before = (self.joins, self.first)
        self.joins, self.first, self._joined = True, None, True
        return before

    def part(self, before: tuple[bool, tuple[Optimizer, FrameType] | None]) -> None:
        """Steps are what they were before."""
        self.joins, self.first = before
