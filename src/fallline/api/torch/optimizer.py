"""Optimizers, scalers, schedulers, samplers: the protocol itself."""

from __future__ import annotations

import ast
from typing import Literal

from fallline.api.call import Call
from fallline.api.gradients import parameter_sets
from fallline.api.library import Method
from fallline.api.paper import Paper
from fallline.api.values import (
    NONE,
    Const,
    Function,
    Partial,
    Sequence,
    Tensor,
    Thing,
    Unknown,
    Value,
    replace,
)
from fallline.events import (
    GradRead,
    Opaque,
    Replace,
    SamplerEpoch,
    ScalerUpdate,
    SchedulerStep,
    Step,
    Unscale,
    ZeroGrad,
)

__all__ = ["METHODS", "emit_step"]


def _acts(paper: Paper, thing: Thing) -> bool:
    """Whether an optimizer or scheduler really acts now: one that Accelerate prepared does so only at the boundary."""
    owner = paper.things.get(str(thing.facts.get("accelerator")))
    return owner is None or bool(owner.facts.get("syncing", True))


def _zero_grad(paper: Paper, optimizer: Thing, call: Call) -> Value:
    if not _acts(paper, optimizer):
        return NONE
    at, sets = paper.place(call.node), optimizer.sets or None
    paper.emit(ZeroGrad(at, optimizer=optimizer.id, parameters=sets))
    return NONE


def _add_group(paper: Paper, optimizer: Thing, call: Call) -> Value:
    """New parameters for an optimizer: what was replaced before is held again."""
    added = parameter_sets(paper, call.arg(0, "param_group"))
    if added is None:
        optimizer.facts.pop("parameters", None)
    elif optimizer.sets:
        optimizer.facts["parameters"] = optimizer.sets | added
    for event in paper.events:
        if isinstance(event, Replace) and event.what == "head":
            paper.events[event.order] = GradRead(
                event.at, what="value", model=event.model, callers=event.callers, order=event.order
            )
    return NONE


def _step(paper: Paper, optimizer: Thing, call: Call) -> Value:
    if not _acts(paper, optimizer):
        return NONE
    closure = paper.settled(call.arg(0, "closure") or NONE)
    is_closure = isinstance(closure, Function | Partial)
    result: Value = NONE
    if is_closure:
        result = _closed(paper, closure, call)
    elif not (isinstance(closure, Const) and closure.value is None):
        if isinstance(closure, Tensor):
            # one that differentiates the loss by itself, as `higher` makes them
            paper.updates.undecided |= closure.forwards
        paper.emit(Opaque(paper.place(call.node), what="the closure"))
    emit_step(
        paper,
        optimizer,
        call.node,
        "framework" if optimizer.facts.get("accelerator") else "direct",
        closure=is_closure or None,
    )
    return result


def _closed(paper: Paper, closure: Value, call: Call) -> Value:
    before, paper.around.closing = paper.around.closing, True
    try:
        return paper.call(closure, Call(call.node, [], {}))
    finally:
        paper.around.closing = before


def emit_step(
    paper: Paper,
    optimizer: Thing,
    node: ast.AST,
    via: Literal["direct", "scaler", "framework"],
    scaler: Thing | None = None,
    closure: bool | None = None,
) -> None:
    """The STEP of one optimizer."""
    paper.emit(
        Step(
            paper.place(node),
            optimizer=optimizer.id,
            scaler=scaler.id if scaler is not None else None,
            via=via,
            closure=closure,
            boundary=paper.boundary(),
            parameters=optimizer.sets or None,
        )
    )


def _scale(paper: Paper, scaler: Thing, call: Call) -> Value:
    value = paper.settled(call.arg(0, "outputs") or Unknown())
    if isinstance(value, Sequence):
        return Sequence(
            [replace(v, scaler=scaler) if isinstance(v, Tensor) else v for v in value.items]
        )
    tensor = value if isinstance(value, Tensor) else Tensor(None, divided=None)
    return replace(tensor, scaler=scaler)


def _unscale(paper: Paper, scaler: Thing, call: Call) -> Value:
    optimizer = _optimizer_of(paper, call)
    if scaler.enabled:
        at, sets = paper.place(call.node), optimizer.sets or None if optimizer else None
        of = optimizer.id if optimizer else None
        paper.emit(Unscale(at, optimizer=of, scaler=scaler.id, parameters=sets))
    return NONE


def _optimizer_of(paper: Paper, call: Call) -> Thing | None:
    value = call.arg(0, "optimizer")
    if value is None:
        return None
    known = paper.settled(value)
    if isinstance(known, Unknown):
        known = paper.become(known, "optimizer")
    return known if isinstance(known, Thing) and known.kind == "optimizer" else None


def _scaler_step(paper: Paper, scaler: Thing, call: Call) -> Value:
    optimizer = _optimizer_of(paper, call)
    if optimizer is None:
        paper.emit(Opaque(paper.place(call.node), what="scaler.step"))
        return NONE
    emit_step(
        paper,
        optimizer,
        call.node,
        "scaler" if scaler.enabled else "direct",
        scaler if scaler.enabled else None,
    )
    return NONE


def _scaler_update(paper: Paper, scaler: Thing, call: Call) -> Value:
    if scaler.enabled:
        paper.emit(ScalerUpdate(paper.place(call.node), scaler=scaler.id))
    return NONE


def _scheduler_step(paper: Paper, scheduler: Thing, call: Call) -> Value:
    of = scheduler.facts.get("optimizer")
    optimizer = paper.things.get(of) if isinstance(of, str) else None
    if scheduler.facts.get("accelerator") and not _acts(paper, scheduler):
        return NONE
    batch = paper.in_batch()
    length = scheduler.attrs.get("length")
    if batch and length is not None and paper.around.every_so_often() is None:
        scheduler.facts["in_epochs"] = paper.loops.rounds(length) or None
    tested = any(
        w in test.text for test in paper.around.tests for w in ("scale", "skip", "step_was_")
    )
    paper.emit(
        SchedulerStep(
            paper.place(call.node),
            scheduler=scheduler.id,
            optimizer=optimizer.id if optimizer is not None else None,
            explicit=bool(call.values) or None,
            per="batch" if batch else "epoch",
            checked=tested,
        )
    )
    return NONE


def _set_epoch(paper: Paper, sampler: Thing, call: Call) -> Value:
    loader = next(
        (
            t
            for t in paper.things.values()
            if t.kind == "loader" and t.attrs.get("sampler") is sampler
        ),
        None,
    )
    of = loader.id if loader is not None else None
    paper.emit(SamplerEpoch(paper.place(call.node), loader=of, sampler=sampler.id))
    return NONE


def _itself(paper: Paper, thing: Thing, call: Call) -> Value:
    """`self.optimizers.values()`: what is called so may be several, kept by name; one stands for them."""
    return thing


def _by_name(paper: Paper, thing: Thing, call: Call) -> Value:
    return Sequence([Sequence([Unknown("name"), thing])])


METHODS: dict[tuple[str, str], Method] = {
    ("optimizer", "values"): _itself,
    ("optimizer", "items"): _by_name,
    ("scheduler", "values"): _itself,
    ("scheduler", "items"): _by_name,
    ("optimizer", "zero_grad"): _zero_grad,
    ("optimizer", "step"): _step,
    ("optimizer", "add_param_group"): _add_group,
    ("scaler", "scale"): _scale,
    ("scaler", "unscale_"): _unscale,
    ("scaler", "step"): _scaler_step,
    ("scaler", "update"): _scaler_update,
    ("scheduler", "step"): _scheduler_step,
    ("sampler", "set_epoch"): _set_epoch,
}
