"""Gradients: backward, clipping, reading and writing them by hand, waiting for the device, and losses that are kept."""

from __future__ import annotations

import ast
import re
from typing import Literal, TypeAlias

from fallline.api.call import Call
from fallline.api.paper import Paper, orders
from fallline.api.values import (
    Const,
    Mapping,
    Param,
    Params,
    Sequence,
    Tensor,
    Thing,
    Value,
    replace,
    truth_of,
)
from fallline.events import (
    Anomaly,
    Backward,
    Clip,
    Forward,
    GradRead,
    GradWrite,
    Keep,
    Sync,
    ZeroGrad,
)

__all__ = [
    "Clipping",
    "Op",
    "accumulate",
    "assign",
    "backward",
    "clip",
    "into",
    "keep",
    "mark_used",
    "parameter_sets",
    "read",
    "sync",
    "taken",
    "used",
    "write",
]


Clipping: TypeAlias = Literal["norm", "value"]
Op: TypeAlias = Literal["div", "mul", "noise", "assign", "add", "other"]
How: TypeAlias = Literal["append", "add", "assign"]
Use: TypeAlias = Literal["norm", "value", "input", "use"]


def backward(
    paper: Paper,
    found: Value,
    call: Call,
    normalised: str | None = None,
    window: int | None = None,
) -> Backward:
    """The backward of a loss, with all that is known about how the loss came to be."""
    loss = found if isinstance(found, Tensor) else Tensor(None, divided=None)
    if loss.raw and loss.reduction is None and loss.divided is False:
        # only a scalar has a backward without arguments
        loss.reduction, loss.presumed = "mean", "the model averages its loss over the batch"
    _kept_before(paper, loss)
    known = loss.graph is not None or bool(loss.forwards)
    loss.graph = True  # whatever it was, it has a graph, or this would raise
    trained = [f for f in _forwards(paper, loss) if f.grad]
    # DDP has nothing to average for a model that is frozen here: the discriminator, in the generator's turn
    wrapped = [f for f in trained if f.wrapper and not f.bypass and not f.frozen][-1:]
    model = paper.things.get(trained[-1].model or "") if trained else None
    scaled = loss.scaler is not None and loss.scaler.enabled
    in_no_sync = bool(paper.around.unsynced)
    keep = paper.settled(call.arg(None, "retain_graph") or Const(False))
    create = paper.settled(call.arg(None, "create_graph") or Const(False))
    if paper.around.anomaly is not None and paper.loops.iteration:
        if not paper.around.caught:  # else somebody waits for what anomaly mode raises
            paper.emit(Anomaly(paper.around.anomaly))
        paper.around.anomaly = None
    models = {f.model for f in trained}
    event = Backward(
        paper.place(call.node),
        model=model.id if model is not None else None,
        scaler=loss.scaler.id if loss.scaler is not None and scaled else None,
        scaled=scaled if (known or loss.scaler) and not paper.around.scales else None,
        divided=loss.divided,
        divisor=loss.divisor.number,
        divided_by=loss.divisor.text or None,
        normalised=normalised,
        window=window,
        reduction=loss.reduction,
        presumed=loss.presumed or None,
        ragged=loss.ragged or None,
        in_batch=loss.in_batch or None,
        autocast=paper.around.autocast[-1] if paper.around.autocast[-1] != "disabled" else "off",
        no_sync=in_no_sync if wrapped or in_no_sync else None,
        sync=(not any(f.no_sync for f in wrapped)) if wrapped else None,
        wrapper=wrapped[-1].wrapper if wrapped else None,
        retain_graph=truth_of(keep) or None,
        create_graph=truth_of(create) or None,
        half_parameters=any(t.facts.get("half") for t in paper.things.values() if t.id in models)
        or None,
        site=paper.site(call.node),
        parameters=loss.sets or None,
    )
    paper.emit(event)
    _settle_history(paper, loss, event, call.node)
    if not loss.forwards:
        # the forward pass was not seen: its backward stands for the iteration that it was in
        loss.forwards = orders(event)
    _has_graph_too(paper, loss)
    return event


def _has_graph_too(paper: Paper, loss: Tensor) -> None:
    """What a loss was made of by arithmetic has a graph if the loss has one: `(mean / k).backward()` says so of `mean`, and of all that this call returns."""
    if loss.presumed:
        paper.updates.walked.add(loss.presumed)
    source = loss.made_of
    while source is not None and source.graph is None:
        source.graph = True
        source.forwards = source.forwards or loss.forwards
        source = source.made_of


def _kept_before(paper: Paper, loss: Tensor) -> None:
    """What was kept of this loss before it was known to have a graph."""
    waiting, paper.updates.perhaps = paper.updates.perhaps, []
    for tensor, kept in waiting:
        same = tensor.forwards == loss.forwards and tensor.reduction == loss.reduction is not None
        if tensor is loss or (same and not loss.stored):
            kept.of, kept.parameters = _models(paper, tensor), tensor.sets or None
            paper.emit(kept)


def _forwards(paper: Paper, tensor: Tensor) -> list[Forward]:
    """The forward passes that a tensor came from, in order."""
    events = (paper.events[order] for order in sorted(tensor.forwards))
    return [event for event in events if isinstance(event, Forward)]


def mark_used(paper: Paper, tensor: Tensor) -> None:
    """A gradient of this is computed: the forward passes in it are used."""
    for event in _forwards(paper, tensor):
        event.used = True
    if not tensor.forwards:
        _perhaps_used(paper)


def _settle_history(paper: Paper, loss: Tensor, event: Backward, node: ast.AST) -> None:
    for order in loss.kept:
        keep = paper.events[order]
        if isinstance(keep, Keep):
            keep.reaches_backward = True
    mark_used(paper, loss)
    for earlier, graph in paper.updates.retained:
        if not loss.forwards.isdisjoint(graph):
            earlier.second = True
    if event.retain_graph:
        paper.updates.retained.append((event, loss.forwards))
        if _LEAF.search(paper.module.source.text) or _is_handed_outputs(paper, node):
            # a graph of such tensors, made before the loop, is walked in every iteration
            paper.updates.undecided.add(event.order)


# Somebody makes tensors that require a gradient.
_LEAF = re.compile(r"requires_grad_\(|requires_grad\s*=\s*True")
_OUTPUT = re.compile(r"(^|_)(log_?)?(probs?|logits?|features?|latents?|hiddens?|embeddings?)(_|$)")


def _is_handed_outputs(paper: Paper, node: ast.AST) -> bool:
    """A function that is given what a network computed, by its name, and goes over it again and again: `agent_prob`."""
    function = paper.module.function(node)
    given = function.args.args if function is not None and paper.module.in_loop(node) else []
    return any(_OUTPUT.search(argument.arg) for argument in given)


def _perhaps_used(paper: Paper) -> None:
    """A gradient of something that could not be followed: any evaluation of this iteration may be in it."""
    start = paper.loops.begun[-1][1] if paper.loops.begun else 0
    for event in paper.events[start:]:
        if isinstance(event, Forward) and event.training is False:
            paper.updates.undecided.add(event.order)


def parameter_sets(paper: Paper, found: Value | None) -> frozenset[str] | None:
    """The parameter sets in what an optimizer or a clip was given; None where it cannot be seen."""
    return _sets(paper, found, set()) or None


def _sets(paper: Paper, found: Value | None, seen: set[int]) -> frozenset[str] | None:
    """`seen` are the lists that were gone into: `a = [a, a]`, again and again, holds itself two to the n times."""
    if found is None:
        return None
    value = paper.settled(found)
    match value:
        case Params(sets) | Param(sets) | Tensor(sets=sets):
            return sets or None
        case Thing(kind="model" | "optimizer" | "criterion"):
            return value.sets or None
        case Thing(kind="iterator", facts=facts):
            return _union(paper, value, facts["of"], seen)
        case Sequence(items, open=False):
            return _union(paper, value, items, seen)
        case Mapping(items=known):
            return _sets(paper, known.get("params"), seen)
    return None


def _union(
    paper: Paper, holder: Value, values: list[Value], seen: set[int]
) -> frozenset[str] | None:
    if id(holder) in seen:
        return frozenset()
    seen.add(id(holder))
    found: frozenset[str] = frozenset()
    for value in values:
        sets = _sets(paper, value, seen)
        if sets is None:
            return None
        found |= sets
    return found or None


def clip(
    paper: Paper,
    call: Call,
    how: Clipping,
    target: Value | None,
    limit: Value | None,
    local_shards: bool | None = None,
) -> Tensor:
    """A clip of the gradients of some parameters."""
    sets = parameter_sets(paper, target)
    known = paper.settled(limit) if limit is not None else None
    threshold = known.number if isinstance(known, Const) else None
    models = [
        t for t in paper.things.values() if t.kind == "model" and sets and t.sets and t.sets <= sets
    ]
    sharded = any(t.facts.get("wrapper") == "fsdp1" for t in models)
    paper.emit(
        Clip(
            paper.place(call.node),
            how=how,
            threshold=threshold,
            parameters=sets,
            closure=paper.around.closing or None,
            local_shards=(sharded or None) if local_shards is None else local_shards,
            scaled=_under_apex(paper, target, sets),
        )
    )
    return Tensor(False)


def _under_apex(
    paper: Paper, target: Value | None, sets: frozenset[str] | None
) -> Literal["inside", "copied", "perhaps"] | None:
    """Whether apex leaves these gradients scaled: inside `scale_loss`, or where it unscales only the copies that are stepped."""
    if paper.around.still_scaled:
        return "inside"
    given = paper.settled(target) if target is not None else None
    if isinstance(given, Params) and given.masters:
        return None
    for thing in paper.things.values():
        if thing.kind == "optimizer" and sets and thing.sets & sets:
            match thing.facts.get("masters"):
                case "copied":
                    return "copied"
                case "perhaps":
                    return "perhaps"
    return None


# `if name == "head.weight":` in a loop over parameters
_ONE_BY_NAME = re.compile(r"""\b(\w*name|n|k|key)\s*==\s*['"]|['"]\s*==\s*(\w*name|n|k|key)\b""")


def sync(paper: Paper, tensor: Tensor, what: str, node: ast.AST) -> None:
    """The host waits for the device."""
    if paper.loops.iteration and not paper.around.inside_model and not tensor.host:
        uses_cuda = "cuda" in paper.module.source.text
        each = bool(paper.loops.kinds and paper.loops.kinds[-1] == "params")
        each = each and not any(_ONE_BY_NAME.search(test.text) for test in paper.around.tests)
        device = "cuda" if uses_cuda else None
        paper.emit(Sync(paper.place(node), what=what, per_parameter=each or None, device=device))


def assign(paper: Paper, sets: frozenset[str], value: Value, node: ast.AST) -> None:
    """`p.grad = None` clears; anything else is a gradient made by hand."""
    match value:
        case Const(None):
            paper.emit(ZeroGrad(paper.place(node), parameters=sets or None))
        case Tensor(divided=True) if value.grad_of is not None:
            paper.emit(GradWrite(paper.place(node), op="div", parameters=sets or None))
        case _:
            paper.emit(GradWrite(paper.place(node), op="assign", parameters=sets or None))


def write(paper: Paper, sets: frozenset[str], op: Op, node: ast.AST) -> None:
    """`p.grad /= k`, `p.grad.mul_(x)`, ..."""
    paper.emit(GradWrite(paper.place(node), op=op, parameters=sets or None))


# Whether a gradient is finite does not depend on what it is multiplied by.
TESTS = frozenset({"isnan", "isinf", "isfinite", "isneginf", "isposinf"})


def read(paper: Paper, sets: frozenset[str], what: Use, node: ast.AST) -> None:
    """`p.grad.norm()` and its kin. The same line counts once after each backward."""
    place = paper.place(node)
    for event in reversed(paper.events[-6:]):
        if isinstance(event, Backward):
            break
        if (
            isinstance(event, GradRead)
            and event.what is not None
            and event.at.line == place.line
            and event.at.path == place.path
        ):
            return
    paper.emit(GradRead(paper.place(node), what=what, parameters=sets or None))


def taken(paper: Paper, value: Value, node: ast.AST) -> None:
    """A gradient that is put somewhere: in a list, an attribute, another tensor. It is used after it was cleared."""
    if isinstance(value, Tensor) and value.grad_of is not None:
        read(paper, frozenset() if "?" in value.grad_of else value.grad_of, "use", node)


def used(paper: Paper, sets: frozenset[str], node: ast.AST) -> None:
    """A parameter changed by hand: an update of its own making if a gradient is in it."""
    paper.emit(GradRead(paper.place(node), what="use", parameters=sets or None))


def _models(paper: Paper, tensor: Tensor) -> tuple[str, ...]:
    """The models whose forward passes a tensor came from."""
    found = (forward.model for forward in _forwards(paper, tensor))
    return tuple(dict.fromkeys(m for m in found if m is not None))


def keep(
    paper: Paper, container: Sequence | Mapping, tensor: Tensor, how: How, node: ast.AST
) -> Tensor:
    """A tensor goes into a container; a leak when it still has its graph and the container outlives the iteration."""
    taken(paper, tensor, node)
    if tensor.graph is False or tensor.grad_of is not None:
        return tensor
    if not paper.loops.outlives(container.born, tensor.forwards):
        return tensor
    if tensor.graph is None:
        paper.updates.perhaps.append(
            (tensor, Keep(paper.place(node), how=how, born=container.born))
        )
        return replace(tensor, stored=True)
    return replace(tensor, kept=tensor.kept | _kept(paper, tensor, how, container.born, node))


def into(paper: Paper, tensor: Tensor, value: Tensor, how: How, node: ast.AST) -> None:
    """`losses[i] = loss`, `total.add_(loss)`: a tensor that lives on takes the graph of another one into its own."""
    taken(paper, value, node)
    if value.divided and tensor.divided is False:
        tensor.divided = None  # `losses[name] = loss / k` in a loop over them
    if not paper.around.recording or tensor.born is None:
        return
    kept = keep(paper, Sequence([], tensor.born), value, how, node)
    tensor.graph = True if value.graph else tensor.graph
    tensor.sets |= kept.sets
    tensor.forwards |= kept.forwards
    tensor.kept |= kept.kept


def accumulate(paper: Paper, node: ast.AST, value: Tensor, new: Tensor, born: int) -> Tensor:
    """`total += loss` or `total = total + loss`, where total was made in iteration `born`."""
    if (
        not value.graph
        or not paper.around.recording
        or not paper.loops.outlives(born, value.forwards)
    ):
        return new
    # the sum is given its name again each time: it is as old as the first of what is in it
    before = (paper.events[order] for order in sorted(new.kept - value.kept))
    kept = (e for e in before if isinstance(e, Keep) and e.at == paper.place(node))
    born = next((e.born for e in kept if e.born is not None), born)
    return replace(new, kept=new.kept | _kept(paper, value, "add", born, node))


def _kept(paper: Paper, tensor: Tensor, how: How, born: int, node: ast.AST) -> frozenset[int]:
    of, sets = _models(paper, tensor), tensor.sets or None
    return orders(paper.emit(Keep(paper.place(node), how=how, born=born, of=of, parameters=sets)))
