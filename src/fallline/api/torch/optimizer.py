"""Optimizers, scalers, schedulers, samplers: the protocol itself."""

from __future__ import annotations

import ast

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
from fallline.event import Kind

__all__ = ["METHODS", "emit_step"]


def _acts(paper: Paper, thing: Thing) -> bool:
    """Whether an optimizer or scheduler really acts now: one that Accelerate prepared does so only at the boundary."""
    owner = paper.things.get(str(thing.facts.get("accelerator")))
    return owner is None or bool(owner.facts.get("syncing", True))


def _zero_grad(paper: Paper, optimizer: Thing, call: Call) -> Value:
    if not _acts(paper, optimizer):
        return NONE
    paper.emit(
        Kind.ZERO_GRAD,
        call.node,
        optimizer=optimizer,
        clears="grad",
        parameters=optimizer.sets or None,
    )
    return NONE


def _add_group(paper: Paper, optimizer: Thing, call: Call) -> Value:
    """New parameters for an optimizer: what was replaced before is held again."""
    added = parameter_sets(paper, call.arg(0, "param_group"))
    if added is None:
        optimizer.facts.pop("parameters", None)
    elif optimizer.sets:
        optimizer.facts["parameters"] = optimizer.sets | added
    for event in paper.events:
        if event.kind is Kind.REPLACE and event.fact("what") == "head":
            event.kind = Kind.GRAD_READ
            event.facts = {"what": "value"}
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
        paper.emit(Kind.OPAQUE, call.node, what="the closure")
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
    via: str,
    scaler: Thing | None = None,
    closure: bool | None = None,
) -> None:
    """The STEP of one optimizer."""
    paper.emit(
        Kind.STEP,
        node,
        optimizer=optimizer,
        scaler=scaler,
        via=via,
        closure=closure,
        boundary=paper.boundary(),
        parameters=optimizer.sets or None,
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
        paper.emit(
            Kind.UNSCALE,
            call.node,
            optimizer=optimizer,
            scaler=scaler,
            parameters=optimizer.sets or None if optimizer else None,
        )
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
        paper.emit(Kind.OPAQUE, call.node, what="scaler.step")
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
        paper.emit(Kind.SCALER_UPDATE, call.node, scaler=scaler)
    return NONE


def _scheduler_step(paper: Paper, scheduler: Thing, call: Call) -> Value:
    of = scheduler.facts.get("optimizer")
    optimizer = paper.things.get(of) if isinstance(of, str) else None
    if scheduler.facts.get("accelerator") and not _acts(paper, scheduler):
        return NONE
    tested = any(
        w in test.text for test in paper.around.tests for w in ("scale", "skip", "step_was_")
    )
    paper.emit(
        Kind.SCHEDULER_STEP,
        call.node,
        scheduler=scheduler,
        optimizer=optimizer,
        explicit=bool(call.values) or None,
        per="batch" if paper.in_batch() else "epoch",
        checked=tested,
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
    paper.emit(Kind.SAMPLER_EPOCH, call.node, loader=loader, sampler=sampler.id)
    return NONE


METHODS: dict[tuple[str, str], Method] = {
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
