"""Calls that cannot be seen into: what they may have done, and what they may return."""

from __future__ import annotations

import re

from fallline.api.arithmetic import merged
from fallline.api.call import Call
from fallline.api.values import Function, Tensor, Thing, Unknown, Value, replace
from fallline.events import Opaque
from fallline.reader.machine import Machine

__all__ = ["derived", "maybe_opaque"]

# A call that cannot be seen into and is named so may do the protocol's work.
_WORKS = re.compile(
    r"(?i)backward|step|optimi|train|accelerat|scal|update|clip|minimi|closure|engine"
)
_HARMLESS = re.compile(
    r"(?i)log|print|save|checkpoint|state|summary|format|len|meter|metric|wandb|write|adjust|learning_rate|lr$|set_lr|get_|is_|isinstance|hasattr|str|repr|type|record|scheduler|show|plot|warn|assert|copy|progress|desc|postfix|to_device|initialize$|freeze|count|info|debug|register"
)


def maybe_opaque(machine: Machine, name: str, call: Call) -> None:
    """A call that was given the protocol may have done part of it."""
    last = name.rpartition(".")[2]
    values = [machine.settled(v) for v in call.values]
    given = [v for v in values if isinstance(v, Thing) and v.kind in {"optimizer", "scaler"}]
    closures = [v for v in values if isinstance(v, Function)]
    losses = [v for v in values if isinstance(v, Tensor) and v.graph and v.forwards]
    if (
        (given and not _HARMLESS.search(last))
        or (losses and _WORKS.search(last))
        or (closures and _WORKS.search(last))
    ):
        machine.emit(Opaque(machine.place(call.node), what=last))


def derived(call: Call, machine: Machine | None = None) -> Value:
    """The result of a call we know nothing about: a tensor if tensors went in."""
    result: Tensor | None = None
    for value in call.values:
        if isinstance(value, Tensor) and value.grad_of is None:
            result = value if result is None else merged(result, value)
    if result is None:
        unknown = Unknown()
        if machine is not None:
            unknown.made_from = [
                t for t in map(machine.settled, call.values) if isinstance(t, Thing)
            ]
        return unknown
    # how it reduces and scales, and whether it has a graph, is not known any more
    return replace(
        result,
        graph=None if result.graph else result.graph,
        reduction=None,
        divided=None if not result.divided else True,
    )
