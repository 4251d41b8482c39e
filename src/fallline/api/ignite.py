"""Ignite: an `Engine` calls its update function for every batch; `auto_model` and `auto_optim` hand back what they were given."""

from __future__ import annotations

from fallline.api.call import Call
from fallline.api.library import Library
from fallline.api.paper import Paper
from fallline.api.values import Function, Tensor, Unknown, Value

__all__ = ["LIBRARY"]


def _same(paper: Paper, call: Call) -> Value:
    return paper.settled(call.args[0]) if call.args else Unknown()


def _engine(paper: Paper, call: Call) -> Value:
    """`Engine(update)`: its `run` is often in another file, so the batches are gone over here, where the function is known."""
    update = paper.settled(call.arg(0, "process_function") or Unknown())
    if isinstance(update, Function):
        loader = paper.make("loader", call.node)
        for _ in paper.over(loader, call.node):
            paper.call(update, Call(call.node, [Unknown("engine"), Tensor(False)], {}, False))
    return Unknown()


LIBRARY = Library(
    functions={
        "ignite.distributed.auto_model": _same,
        "ignite.distributed.auto_optim": _same,
        "ignite.engine.Engine": _engine,
        "ignite.engine.engine.Engine": _engine,
    }
)
