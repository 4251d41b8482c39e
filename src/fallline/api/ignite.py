"""Ignite: `auto_model` and `auto_optim` hand back what they were given."""

from __future__ import annotations

from fallline.api.call import Call
from fallline.api.library import Library
from fallline.api.paper import Paper
from fallline.api.values import Unknown, Value

__all__ = ["LIBRARY"]


def _same(paper: Paper, call: Call) -> Value:
    return paper.settled(call.args[0]) if call.args else Unknown()


LIBRARY = Library(
    functions={"ignite.distributed.auto_model": _same, "ignite.distributed.auto_optim": _same}
)
