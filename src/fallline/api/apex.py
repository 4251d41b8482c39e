"""apex: amp scales the loss in a `with` and unscales the gradients at its end, so that a plain `optimizer.step()` follows."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from contextlib import contextmanager

from fallline.api.call import Call
from fallline.api.gradients import parameter_sets
from fallline.api.library import Library
from fallline.api.paper import Paper
from fallline.api.values import (
    Const,
    Context,
    Params,
    Sequence,
    Tensor,
    Thing,
    Unknown,
    Value,
    replace,
)

__all__ = ["LIBRARY"]


# With these levels the optimizer steps the model's own parameters; O2 gives it copies in float32.
_OWN_PARAMETERS = ("O0", "O1", "O3")


def _initialize(paper: Paper, call: Call) -> Value:
    """`model, optimizer = amp.initialize(model, optimizer, ...)`: what it was given, prepared in place."""
    given = [call.arg(0, "models"), call.arg(1, "optimizers")]
    found = [paper.settled(value) for value in given if value is not None]
    level = paper.settled(call.arg(3, "opt_level") or Const("O1"))
    for thing in found:
        if isinstance(thing, Thing) and thing.kind == "optimizer":
            thing.facts["masters"] = _copies(level)
    return found[0] if len(found) == 1 else Sequence(found)


def _copies(level: Value) -> str | None:
    """Whether the optimizer steps copies at this level; an option may say any of them."""
    match level:
        case Const(value=value) if value in _OWN_PARAMETERS:
            return None
        case Const():
            return "copied"
    return "perhaps"


def _scale_loss(paper: Paper, call: Call) -> Value:
    """`with amp.scale_loss(loss, optimizer) as scaled: scaled.backward()`."""
    loss = paper.settled(call.arg(0, "loss") or Unknown())
    scaled = replace(loss) if isinstance(loss, Tensor) else Tensor(None, divided=None)
    return Context(_scaling, scaled)


@contextmanager
def _scaling(paper: Paper, node: ast.AST) -> Iterator[None]:
    around = paper.around
    before = around.scales, around.still_scaled
    around.scales = around.still_scaled = True
    try:
        yield
    finally:
        around.scales, around.still_scaled = before


def _master_params(paper: Paper, call: Call) -> Value:
    """The parameters that the optimizer steps; in float32 where the model's are not."""
    return Params(parameter_sets(paper, call.arg(0, "optimizer")) or frozenset(), masters=True)


def _same(paper: Paper, call: Call) -> Value:
    return paper.settled(call.args[0]) if call.args else Unknown()


LIBRARY = Library(
    functions={
        "apex.amp.initialize": _initialize,
        "apex.amp.scale_loss": _scale_loss,
        "apex.amp.master_params": _master_params,
        # it averages gradients as torch's does, and has no no_sync
        "apex.parallel.DistributedDataParallel": _same,
        "apex.parallel.convert_syncbn_model": _same,
    }
)
