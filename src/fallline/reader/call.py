"""A call with its arguments evaluated, and the methods of training objects by (kind, name)."""

from __future__ import annotations

import ast
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from fallline.reader.values import Thing, Value

if TYPE_CHECKING:
    from fallline.reader.machine import Machine

__all__ = ["METHODS", "Call"]


@dataclass(slots=True)
class Call:
    """A call with its arguments evaluated."""

    node: ast.Call
    args: list[Value]
    kwargs: dict[str, Value]
    star: bool = False  # arguments hidden behind * or **

    def arg(self, position: int | None, *names: str) -> Value | None:
        for name in names:
            if name in self.kwargs:
                return self.kwargs[name]
        if position is not None and position < len(self.args):
            return self.args[position]
        return None

    @property
    def values(self) -> list[Value]:
        return [*self.args, *self.kwargs.values()]


# Filled in by models.py and protocol.py.
METHODS: dict[tuple[str, str], Callable[[Machine, Thing, Call], Value]] = {}
