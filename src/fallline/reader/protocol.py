"""Optimizers, scalers, schedulers, samplers: the protocol itself."""

from __future__ import annotations

import ast

from fallline.events import GradRead, Kind
from fallline.reader import frameworks
from fallline.reader.call import METHODS, Call
from fallline.reader.machine import Machine
from fallline.reader.relevance import trains
from fallline.reader.values import (
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

__all__ = ["emit_step", "enabled"]


def _zero_grad(machine: Machine, optimizer: Thing, call: Call) -> Value:
    if not frameworks.stepping(machine, optimizer):
        return NONE
    machine.emit(
        Kind.ZERO_GRAD,
        call.node,
        optimizer=optimizer,
        clears="grad",
        parameters=optimizer.sets or None,
    )
    return NONE


def _add_group(machine: Machine, optimizer: Thing, call: Call) -> Value:
    """New parameters for an optimizer: what was replaced before is held again."""
    from fallline.reader.builders import parameter_sets

    added = parameter_sets(machine, call.arg(0, "param_group"))
    if added is None:
        optimizer.facts.pop("parameters", None)
    elif optimizer.sets:
        optimizer.facts["parameters"] = optimizer.sets | added
    for event in machine.events:
        if event.kind is Kind.REPLACE and event.fact("what") == "head":
            machine.events[event.order] = GradRead(
                event.at, what="value", model=event.model, callers=event.callers, order=event.order
            )
    return NONE


def _step(machine: Machine, optimizer: Thing, call: Call) -> Value:
    if not frameworks.stepping(machine, optimizer):
        return NONE
    closure = machine.settled(call.arg(0, "closure") or NONE)
    is_closure = isinstance(closure, Function | Partial)
    result: Value = NONE
    if is_closure:
        result = _closed(machine, closure, call)
    elif not (isinstance(closure, Const) and closure.value is None):
        machine.emit(Kind.OPAQUE, call.node, what="the closure")
    emit_step(
        machine,
        optimizer,
        call.node,
        "framework" if optimizer.facts.get("accelerator") else "direct",
        closure=is_closure or None,
    )
    return result


def _closed(machine: Machine, closure: Value, call: Call) -> Value:
    from fallline.reader.calls import call_value

    machine.frames[-1].closing, before = True, machine.frames[-1].closing
    try:
        return call_value(machine, closure, Call(call.node, [], {}))
    finally:
        machine.frames[-1].closing = before


def emit_step(
    machine: Machine,
    optimizer: Thing,
    node: ast.AST,
    via: str,
    scaler: Thing | None = None,
    closure: bool | None = None,
) -> None:
    """The STEP of one optimizer."""
    machine.emit(
        Kind.STEP,
        node,
        optimizer=optimizer,
        scaler=scaler,
        via=via,
        closure=closure,
        boundary=machine.boundary(),
        parameters=optimizer.sets or None,
    )


def _scale(machine: Machine, scaler: Thing, call: Call) -> Value:
    value = machine.settled(call.arg(0, "outputs") or Unknown())
    if isinstance(value, Sequence):
        return Sequence(
            [replace(v, scaler=scaler) if isinstance(v, Tensor) else v for v in value.items]
        )
    tensor = value if isinstance(value, Tensor) else Tensor(None, divided=None)
    return replace(tensor, scaler=scaler)


def _unscale(machine: Machine, scaler: Thing, call: Call) -> Value:
    optimizer = _optimizer_of(machine, call)
    if enabled(machine, scaler):
        machine.emit(
            Kind.UNSCALE,
            call.node,
            optimizer=optimizer,
            scaler=scaler,
            parameters=optimizer.sets or None if optimizer else None,
        )
    return NONE


def _optimizer_of(machine: Machine, call: Call) -> Thing | None:
    value = call.arg(0, "optimizer")
    if value is None:
        return None
    known = machine.settled(value)
    if isinstance(known, Unknown):
        known = machine.become(known, "optimizer")
    return known if isinstance(known, Thing) and known.kind == "optimizer" else None


def enabled(machine: Machine, scaler: Thing) -> bool:
    return scaler.facts.get("enabled") is not False


def _scaler_step(machine: Machine, scaler: Thing, call: Call) -> Value:
    optimizer = _optimizer_of(machine, call)
    if optimizer is None:
        machine.emit(Kind.OPAQUE, call.node, what="scaler.step")
        return NONE
    emit_step(
        machine,
        optimizer,
        call.node,
        "scaler" if enabled(machine, scaler) else "direct",
        scaler if enabled(machine, scaler) else None,
    )
    return NONE


def _scaler_update(machine: Machine, scaler: Thing, call: Call) -> Value:
    if enabled(machine, scaler):
        machine.emit(Kind.SCALER_UPDATE, call.node, scaler=scaler)
    return NONE


def _scheduler_step(machine: Machine, scheduler: Thing, call: Call) -> Value:
    of = scheduler.facts.get("optimizer")
    optimizer = machine.things.get(of) if isinstance(of, str) else None
    if scheduler.facts.get("accelerator") and not frameworks.stepping(machine, scheduler):
        return NONE
    tested = any(w in text for _, _, text in machine.tests for w in ("scale", "skip", "step_was_"))
    machine.emit(
        Kind.SCHEDULER_STEP,
        call.node,
        scheduler=scheduler,
        optimizer=optimizer,
        explicit=bool(call.values) or None,
        per="batch" if _in_batch(machine) else "epoch",
        checked=tested,
    )
    return NONE


def _in_batch(machine: Machine) -> bool:
    """The innermost loop around is one that trains batch by batch, not the epoch loop around it."""

    if "data" in machine.loops:
        return True
    if not machine.loop_nodes:
        return False
    module, loop = machine.loop_nodes[-1]
    inner = [n for n in ast.walk(loop) if isinstance(n, ast.For | ast.While) and n is not loop]
    return not trains(module, inner) and any(
        isinstance(n, ast.Call)
        and isinstance(n.func, ast.Attribute)
        and n.func.attr in {"backward", "manual_backward"}
        for n in ast.walk(loop)
    )


def _set_epoch(machine: Machine, sampler: Thing, call: Call) -> Value:
    loader = next(
        (
            t
            for t in machine.things.values()
            if t.kind == "loader" and t.attrs.get("sampler") is sampler
        ),
        None,
    )
    machine.emit(Kind.SAMPLER_EPOCH, call.node, loader=loader, sampler=sampler.id)
    return NONE


METHODS |= {
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
