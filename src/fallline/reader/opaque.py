"""Calls that cannot be seen into: what they may have done, and what they may return."""

from __future__ import annotations

import re

from fallline.api.arithmetic import merged
from fallline.api.call import Call
from fallline.api.values import Function, Tensor, Thing, Unknown, Value, of_kind, replace
from fallline.events import Deed, Opaque
from fallline.reader.counts import COUNTED
from fallline.reader.machine import Machine

__all__ = ["computed", "derived", "holds_protocol", "maybe_opaque"]

# By its name such a call, given the loss or a closure, does part of the protocol.
_WORKS = re.compile(
    r"(?i)backward|step|optimi|train|accelerat|scal(?!ar)|update|clip|minimi|closure|engine"
)
# ... unless it is a log, a meter, a metric: a value of the loss is all that these want.
_RECORDS = re.compile(
    r"(?i)log(?!it)|print|meter|metric|track|stat|history|record|writer|board|wandb|summary|monitor|average|avg|progress|pbar"
    r"|running|losses|accuracy|ema"
)
# By its name such a call, given the optimizer, does no part of it.
_HARMLESS = re.compile(
    r"(?i)log|print|save|checkpoint|state|summary|format|len|meter|metric|wandb|write|adjust|learning_rate|lr$|set_lr|get_|is_|isinstance|hasattr|str|repr|type|record|scheduler|show|plot|warn|assert|copy|progress|desc|postfix|to_device|initialize$|freeze|count|info|debug|register|load|resume|restore|callback"
)

# These only look at what they are given.
_LOOKS = re.compile(
    r"str|repr|len|print|type|id|bool|hash|format|isinstance|hasattr|callable|info|debug|warning|log"
)


def maybe_opaque(machine: Machine, name: str, call: Call) -> None:
    """A call that was given part of the protocol may have done part of it: what it could do depends on what it got."""
    last = name.rpartition(".")[2]
    could: set[Deed] = set()
    for value in map(machine.settled, call.values):
        deeds = _could(value, name, last)
        could |= deeds
        if isinstance(value, Tensor) and "backward" in deeds:
            machine.updates.undecided |= value.forwards
    _perhaps_differentiated(machine, call)
    if could:
        at = machine.place(call.node)
        machine.emit(Opaque(at, what=last, could=frozenset(could)))


def _perhaps_differentiated(machine: Machine, call: Call) -> None:
    """`params = update_parameters(model, inner_loss)`: given a model and what it computed, a call may take gradients."""
    values = [machine.settled(value) for value in call.values]
    if of_kind(values, "model"):
        for value in values:
            if isinstance(value, Tensor) and value.graph:
                machine.updates.undecided |= value.forwards


_EVERYTHING: frozenset[Deed] = frozenset({"backward", "clear", "step", "divide", "epoch"})
_UPDATES: frozenset[Deed] = frozenset({"clear", "step", "divide"})
_RUNS_BACKWARD: frozenset[Deed] = frozenset({"backward", "clear", "step"})


def _could(value: Value, name: str, last: str) -> frozenset[Deed]:
    """What a call of this name could do with a value."""
    match value:
        case Thing(kind="optimizer" | "scaler") if not _HARMLESS.search(last):
            return _UPDATES
        case Thing(kind="sampler" | "loader") if not _LOOKS.fullmatch(last):
            return frozenset({"epoch"})
        case Tensor() if value.graph and value.forwards and _WORKS.search(last):
            return frozenset() if _RECORDS.search(name) else _RUNS_BACKWARD
        case Function() if _WORKS.search(last):
            return _EVERYTHING
    return frozenset()


def holds_protocol(machine: Machine, thing: Thing) -> bool:
    """Whether an object is a training object or has one: an environment's `step` has no optimizer to step."""
    held = (machine.settled(value) for value in thing.attrs.values())
    return thing.kind != "object" or any(
        isinstance(value, Thing) and value.kind not in {"object", "dataset", "iterator"}
        for value in held
    )


# By its name such a call returns a loss; not one that makes another of it.
_LOSS = re.compile(r"(?i)(^|_)loss(es)?($|_)|loss$|criterion$")
# By its name such a call only moves values: `pad_input`, `gather_outputs_and_unpad`, `rearrange`.
_REARRANGES = re.compile(
    r"(?i)^(un)?(pad|gather|rearrange|reshape|flatten|squeeze|slice|transpose|permute|index_first)(_|$)"
)
# By its name such a call returns a number of micro-batches.
_WINDOW = re.compile(r"(?i)accum\w*_(steps|iters|batches)$|(num|n)_(micro|accum)")
_CHANGES = re.compile(r"(?i)scal|norm|div|aver|mean|reduc|weigh|backward|sum|log(?!its)|add|total")


def computed(machine: Machine, name: str, call: Call, of: tuple[Thing, ...] = ()) -> Value:
    """The result of a call that cannot be seen into: where it is named so, a loss that averages, as losses do."""
    last = name.rpartition(".")[2]
    result = derived(call, machine, rearranges=_REARRANGES.search(last) is not None)
    if isinstance(result, Unknown) and _WINDOW.search(last):
        result.hint = " ".join(machine.text(call.node).split())[:100]
    if not _LOSS.search(last) or _CHANGES.search(last) or not machine.around.recording:
        return result
    given = [machine.settled(value) for value in call.values]
    if any(isinstance(value, Unknown) and COUNTED.search(value.hint) for value in given):
        return result  # it may divide by that count
    if not isinstance(result, Tensor):
        models = of_kind((*of, *given), "model")
        if not models:
            return result
        result = Tensor(None, frozenset[str]().union(*(model.sets for model in models)))
    presumed = f"`{last}` averages over the batch, as losses do by default"
    known = presumed in machine.updates.walked
    walked = known and result.graph is None and bool(result.forwards)
    return replace(
        result,
        graph=True if walked else result.graph,
        reduction="mean",
        presumed=presumed,
        divided=False,
        depth=len(machine.loops.kinds),
    )


def derived(call: Call, machine: Machine | None = None, *, rearranges: bool = False) -> Value:
    """The result of a call we know nothing about: a tensor if tensors went in. `rearranges`: its values are those that went in."""
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
    if rearranges:
        return result
    # how it reduces and scales, and whether it has a graph, is not known any more
    return replace(
        result,
        graph=None if result.graph else result.graph,
        reduction=None,
        divided=None if not result.divided else True,
    )
