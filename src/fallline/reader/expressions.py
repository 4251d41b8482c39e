"""Expressions, evaluated on paper. Calls are in calls.py, comparisons in decide.py."""

from __future__ import annotations

import ast
from collections.abc import Callable
from typing import Any

from fallline import api
from fallline.api import gradients, tensors
from fallline.api.values import (
    Bound,
    Class,
    Const,
    External,
    Function,
    Mapping,
    Param,
    Params,
    Sequence,
    Tensor,
    Thing,
    Unknown,
    Value,
    one_for_each,
)
from fallline.events import GradRead
from fallline.reader.assign import assign_to
from fallline.reader.machine import Machine
from fallline.reader.names import defined
from fallline.reader.objects import class_attribute, set_elsewhere, thing_attribute
from fallline.reader.operators import MOST_ITEMS, combine
from fallline.reader.streams import stream_of

__all__ = ["EXPRESSIONS", "attribute"]


def _constant(machine: Machine, node: ast.Constant) -> Value:
    return Const(node.value)


def _name(machine: Machine, node: ast.Name) -> Value:
    return machine.lookup(node.id)


def _attribute(machine: Machine, node: ast.Attribute) -> Value:
    value = machine.evaluate(node.value)
    if node.attr == "grad" and not isinstance(value, External):  # torch.autograd.grad is a function
        machine.emit(GradRead(machine.place(node)))  # for what, whoever uses it says
    return attribute(machine, value, node.attr, node)


def attribute(machine: Machine, found: Value, name: str, node: ast.AST) -> Value:
    """`value.name`."""
    value = machine.settled(found)
    match value:
        case Thing():
            return thing_attribute(machine, value, name, node)
        case Tensor():
            return tensors.attribute(machine, value, name, node)
        case Class():
            return class_attribute(machine, value, name)
        case External():
            return _external_attribute(machine, value, name)
        case Param() if name == "grad":
            return Tensor(False, grad_of=value.sets or frozenset({"?"}))
        case Param() if name == "data":
            return value
        case Unknown() if name == "grad":
            return Tensor(False, grad_of=frozenset({"?"}), leaf=True)
        case Unknown():
            return value.part(name)
        case Const(None) if (made := set_elsewhere(machine, value, node)) is not None:
            return made.part(name)
    return Bound(value, name)


def _external_attribute(machine: Machine, value: External, name: str) -> Value:
    dotted = f"{value.name}.{name}"
    if not dotted.startswith(("torch.", "builtins.")) and api.function(dotted) is None:
        found = machine.project.find(dotted, machine.module)
        if found is not None:
            return defined(machine, *found)
    if dotted in {"math.inf", "torch.inf", "numpy.inf"}:
        return Const(float("inf"))
    if dotted == "math.pi":
        return Const(3.141592653589793)
    return External(dotted)


def _binary(machine: Machine, node: ast.BinOp) -> Value:
    return combine(
        machine, machine.evaluate(node.left), machine.evaluate(node.right), node.op, node
    )


def _unary(machine: Machine, node: ast.UnaryOp) -> Value:
    value = machine.settled(machine.evaluate(node.operand))
    match node.op, value:
        case ast.Not(), Const(known, varying):
            return Const(not known, varying)
        case ast.Not(), Unknown(hint=hint):
            return Unknown(f"not {hint}"[:500])
        case ast.Not(), _:
            return Const(False)
        case ast.USub(), Const(int() | float() as number, varying):
            return Const(-number, varying)
    return value


def _boolean(machine: Machine, node: ast.BoolOp) -> Value:
    stop_at = isinstance(node.op, ast.Or)
    value: Value = Unknown()
    varying = False
    for part in node.values:
        value = machine.settled(machine.evaluate(part))
        if isinstance(value, Unknown):
            # decided here as in a test of its own, so that whatever depends on it agrees
            hint = value.hint or " ".join(machine.text(part).split())[:120]
            negated = hint.startswith("not ")
            on = (
                machine.switch(hint[4:] if negated else hint, not negated, machine.worth(1))
                is not negated
            )
            if on is stop_at:
                return value if on and not negated else Const(on)
            value = value if on and not negated else Const(on)
            continue
        if not isinstance(value, Const):
            if stop_at:
                return value
            continue
        varying = varying or value.varying
        if bool(value.value) is stop_at:
            return Const(value.value, varying)
    return Const(value.value, varying) if isinstance(value, Const) else value


def _spend(machine: Machine, elements: list[ast.expr]) -> bool:
    """A long literal is as much work as several statements; whether it is too long to be evaluated as a whole."""
    machine.bounds.spend(min(len(elements), MOST_ITEMS) // 16)
    return len(elements) > MOST_ITEMS


def _sequence(machine: Machine, node: ast.List | ast.Tuple | ast.Set) -> Value:
    items: list[Value] = []
    unclear = _spend(machine, node.elts)
    for element in node.elts[:MOST_ITEMS]:
        if not isinstance(element, ast.Starred):
            items.append(machine.evaluate(element))
            continue
        match machine.settled(machine.evaluate(element.value)):
            case Sequence(items=inner):
                items += inner
            case Params() as parameters:
                items.append(parameters)
            case _:
                unclear = True
        if len(items) > MOST_ITEMS:
            unclear = True
            del items[MOST_ITEMS:]
    spread = items if all(isinstance(e, ast.Starred) for e in node.elts) else []
    if spread and not unclear and all(isinstance(i, Params) for i in spread):
        # `[*encoder.parameters(), *head.parameters()]`: one parameter after the other, not two groups
        return Params(frozenset().union(*(i.sets for i in spread if isinstance(i, Params))))
    return Sequence(items, machine.loops.iteration, unclear)


def _mapping(machine: Machine, node: ast.Dict) -> Value:
    items: dict[Any, Value] = {}
    _spend(machine, node.values)
    pairs = zip(node.keys[:MOST_ITEMS], node.values[:MOST_ITEMS], strict=True)
    for index, (key, value) in enumerate(pairs):
        found = machine.evaluate(value)
        name = machine.evaluate(key) if key is not None else None
        try:
            items[name.value if isinstance(name, Const) else f"?{index}"] = found
        except TypeError:
            continue
    return Mapping(items, machine.loops.iteration)


def _subscript(machine: Machine, node: ast.Subscript) -> Value:
    value = machine.settled(machine.evaluate(node.value))
    key = machine.evaluate(node.slice)
    match value, key:
        case Mapping(), Const(str() | int() as name):
            found = value.get(name)
            return found if found is not None else Unknown(str(name))
        case Mapping(), Const(name):
            return Unknown(str(name))
        case Mapping(items=items), _:
            return next(iter(items.values()), Unknown())
        case Sequence(items=listed), Const(int(index)) if -len(listed) <= index < len(listed):
            return listed[index]
        case Sequence(), _ if isinstance(node.slice, ast.Slice):
            return value
        case Sequence(items=listed), _:
            return listed[0] if listed else Unknown()
        case Tensor(), Const("loss"):
            return machine.attribute(value, "loss", node)
        case Thing(), Const(str(name)) if (one := _one_of(machine, value, name)) is not None:
            return one
        case Thing(kind="object", facts={"record": True}), Const(place):
            fields = value.attrs
            return (
                list(fields.values())[place]
                if isinstance(place, int) and -len(fields) <= place < len(fields)
                else fields.get(str(place), Unknown(str(place)))
            )
        case ((Tensor() | Params() | Param() | Thing(kind="model")), _):
            return value
        case Unknown(), Const(str(name)):
            return value.item(name)
        case Unknown(), _:
            return value.part("[]")
        case External(name=of), Const(
            str(name)
        ):  # `wandb.config["use_amp"]`, the same wherever it is asked
            return Unknown(f"{of}[{name!r}]")
        case Bound(of=Tensor() as tensor), _:
            return tensor
    return Unknown()


def _one_of(machine: Machine, things: Thing, key: str) -> Thing | None:
    """`optimizer["generator"]`, where `optimizer` was given by someone and is a dict of them; the same one each time."""
    if things.at is not None or not one_for_each(things.kind, key):
        return None
    known = things.attrs.get(f"[{key}]")
    if not isinstance(known, Thing):
        part = Unknown(f"{things.facts.get('name') or things.kind}_{key}")
        known = things.attrs[f"[{key}]"] = machine.become(part, things.kind)
    return known


def _comprehension(
    machine: Machine, node: ast.ListComp | ast.SetComp | ast.GeneratorExp | ast.DictComp
) -> Value:
    generator = node.generators[0]
    stream = stream_of(machine, machine.evaluate(generator.iter), None)
    count = min(stream.count, 6) if stream.count is not None else 1
    if stream.kind == "data":
        count = 1
    results: list[Value] = []
    keyed: dict[Any, Value] = {}
    saved = dict(machine.frame.names)
    before = machine.loops.iteration
    machine.loops.kinds.append(stream.kind if stream.kind == "params" else "items")
    machine.loops.fed += stream.loader is not None
    for index in range(count):
        assign_to(machine, generator.target, stream.item(index), generator.target)
        for inner in node.generators[1:]:
            inner_stream = stream_of(machine, machine.evaluate(inner.iter), None)
            if inner_stream.count == 0:
                continue
            assign_to(machine, inner.target, inner_stream.item(0), inner.target)
        if isinstance(node, ast.DictComp):
            key = machine.evaluate(node.key)
            value = machine.evaluate(node.value)
            try:
                keyed[key.value if isinstance(key, Const) else f"?{index}"] = value
            except TypeError:
                continue
        else:
            results.append(machine.evaluate(node.elt))
    machine.loops.iteration = before
    machine.loops.fed -= stream.loader is not None
    machine.loops.kinds.pop()
    machine.frame.names.clear()
    machine.frame.names.update(saved)
    if isinstance(node, ast.DictComp):
        return Mapping(keyed, machine.loops.iteration)
    used = next((r.grad_of for r in results if isinstance(r, Tensor) and r.grad_of), None)
    if used is not None:
        gradients.read(machine, frozenset() if "?" in used else used, "use", node)
    if results and stream.kind == "params" and all(isinstance(r, Param) for r in results):
        return Params(frozenset().union(*(r.sets for r in results if isinstance(r, Param))))
    return Sequence(results, machine.loops.iteration)


def _lambda(machine: Machine, node: ast.Lambda) -> Value:
    return Function(node, machine.module, machine.frame, machine.frame.me)


def _text(machine: Machine, node: ast.JoinedStr) -> Value:
    for part in node.values:
        if isinstance(part, ast.FormattedValue):
            shown = machine.settled(machine.evaluate(part.value))
            if isinstance(shown, Tensor):
                gradients.sync(machine, shown, "print", part.value)
    return Unknown("text")


def _named(machine: Machine, node: ast.NamedExpr) -> Value:
    value = machine.evaluate(node.value)
    machine.assign(node.target.id, value)
    return value


def _inner(machine: Machine, node: ast.Await | ast.Starred | ast.YieldFrom) -> Value:
    return machine.evaluate(node.value)


def _slice(machine: Machine, node: ast.Slice) -> Value:
    return Unknown()


EXPRESSIONS: dict[type, Callable[[Machine, Any], Value]] = {
    ast.Constant: _constant,
    ast.Name: _name,
    ast.Attribute: _attribute,
    ast.BinOp: _binary,
    ast.UnaryOp: _unary,
    ast.BoolOp: _boolean,
    ast.List: _sequence,
    ast.Tuple: _sequence,
    ast.Set: _sequence,
    ast.Dict: _mapping,
    ast.Subscript: _subscript,
    ast.ListComp: _comprehension,
    ast.SetComp: _comprehension,
    ast.GeneratorExp: _comprehension,
    ast.DictComp: _comprehension,
    ast.Lambda: _lambda,
    ast.JoinedStr: _text,
    ast.NamedExpr: _named,
    ast.Await: _inner,
    ast.Starred: _inner,
    ast.YieldFrom: _inner,
    ast.Slice: _slice,
}
