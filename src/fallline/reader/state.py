"""What an execution carries along: the names of its frames, and how much work is left."""

from __future__ import annotations

import time
from dataclasses import dataclass, field

from fallline.api.values import Thing, Value
from fallline.syntax import Module

__all__ = ["Bounds", "Frame", "Stop"]

_FUEL = 30_000
_MOST_EVENTS = 4_000


class Stop(Exception):
    """The bounds of one trace are reached."""


@dataclass(slots=True, eq=False)
class Frame:
    """The names of one function call (or of a module), and the frame around its definition."""

    module: Module
    function: str = ""
    outer: Frame | None = None
    me: Thing | None = None
    names: dict[str, Value] = field(default_factory=dict)
    fresh: dict[str, int] = field(default_factory=dict)  # name → iteration of its last assignment
    globals: set[str] = field(default_factory=set)


@dataclass(slots=True)
class Bounds:
    """How much work one trace may be. `complete` is false once it stopped short of the program's end."""

    deadline: float  # of processor time
    fuel: int = _FUEL
    complete: bool = True

    @property
    def spent(self) -> int:
        """Statements carried out so far."""
        return _FUEL - self.fuel

    def tick(self, events: int) -> None:
        """One statement's worth of work; stops the trace at its bounds."""
        self.fuel -= 1
        if self.fuel < 0 or events > _MOST_EVENTS:
            self.complete = False
            raise Stop
        if self.fuel % 512 == 0 and time.thread_time() > self.deadline:
            self.complete = False
            raise Stop

    def spend(self, statements: int) -> None:
        """As much work as so many statements, inside one."""
        self.fuel -= statements
        if self.fuel < 0:
            self.complete = False
            raise Stop
