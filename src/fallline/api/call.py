"""A call with its arguments evaluated."""

from __future__ import annotations

import ast
from dataclasses import dataclass

from fallline.api.values import Value

__all__ = ["Call"]


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
