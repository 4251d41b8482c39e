"""Expressions, evaluated on paper."""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable
from typing import Any

from fallline.reader import grads
from fallline.reader.counts import COUNTED
from fallline.reader.machine import Machine
from fallline.reader.values import (
    Bound,
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
    replace,
)

__all__ = ["ATTRIBUTES", "HANDLERS", "attribute", "combine", "evaluate", "merged"]

# Filled in by the modules that know: calls.py, decide.py, comprehensions and objects.
HANDLERS: dict[type, Callable[[Machine, Any], Value]] = {}
WAITS: list[Callable[[Machine, Tensor, str, ast.AST], None]] = []  # tensors.sync
ATTRIBUTES: dict[type, Callable[[Machine, Any, str, ast.AST], Value]] = {}

_OPERATORS: dict[type, Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
    ast.BitAnd: operator.and_,
    ast.BitOr: operator.or_,
}


def evaluate(machine: Machine, node: ast.expr) -> Value:
    """The value of an expression on paper."""
    handler = HANDLERS.get(node.__class__)
    return handler(machine, node) if handler is not None else Unknown()


def _constant(machine: Machine, node: ast.Constant) -> Value:
    return Const(node.value)


def _name(machine: Machine, node: ast.Name) -> Value:
    return machine.lookup(node.id)


def _attribute(machine: Machine, node: ast.Attribute) -> Value:
    return attribute(machine, evaluate(machine, node.value), node.attr, node)


def attribute(machine: Machine, found: Value, name: str, node: ast.AST) -> Value:
    """`value.name`."""
    value = machine.settled(found)
    handler = ATTRIBUTES.get(value.__class__)
    if handler is not None:
        return handler(machine, value, name, node)
    if isinstance(value, External):
        return _external_attribute(machine, value, name)
    if isinstance(value, Param):
        if name == "grad":
            return Tensor(False, grad_of=value.sets or frozenset({"?"}))
        return value if name == "data" else Bound(value, name)
    if isinstance(value, Unknown):
        if name == "grad":
            return Tensor(False, grad_of=frozenset({"?"}), leaf=True)
        return value.part(name)
    return Bound(value, name)


def _external_attribute(machine: Machine, value: External, name: str) -> Value:
    dotted = f"{value.name}.{name}"
    if not dotted.startswith(("torch.", "builtins.")):
        found = machine.project.find(dotted, machine.module)
        if found is not None:
            from fallline.reader.globals import defined

            return defined(machine, *found)
    if dotted in {"math.inf", "torch.inf", "numpy.inf"}:
        return Const(float("inf"))
    if dotted == "math.pi":
        return Const(3.141592653589793)
    return External(dotted)


def _binary(machine: Machine, node: ast.BinOp) -> Value:
    return combine(
        machine, evaluate(machine, node.left), evaluate(machine, node.right), node.op, node
    )


def combine(
    machine: Machine, first: Value, second: Value, op: ast.operator, node: ast.AST
) -> Value:
    """Two values under an arithmetic operator."""
    a, b = machine.settled(first), machine.settled(second)
    if isinstance(a, Tensor) or isinstance(b, Tensor):
        return _tensors(machine, a, b, op, node)
    if isinstance(a, Const) and isinstance(b, Const):
        return _arithmetic(machine, a, b, op)
    if isinstance(a, Sequence) and isinstance(b, Sequence) and isinstance(op, ast.Add):
        return Sequence([*a.items, *b.items], machine.iteration)
    if isinstance(a, Params) and isinstance(b, Params):
        return Params(a.sets | b.sets)
    if isinstance(a, Sequence) and isinstance(op, ast.Mult):
        times = (
            b.value
            if isinstance(b, Const) and isinstance(b.value, int) and 0 < b.value <= 64
            else 0
        )
        return Sequence(a.items * (times or 1), machine.iteration, open=not times)
    return _with_unknown(machine, a, b, op, node)


def _arithmetic(machine: Machine, a: Const, b: Const, op: ast.operator) -> Value:
    left, right = a.value, b.value
    if isinstance(op, ast.Mod) and isinstance(left, int) and isinstance(right, int) and a.varying:
        right = machine.small(right)
    if isinstance(op, ast.Pow):
        return Unknown()
    try:
        return Const(_OPERATORS[op.__class__](left, right), a.varying or b.varying)
    except (TypeError, ArithmeticError, KeyError, ValueError, MemoryError):
        return Unknown()


def _with_unknown(machine: Machine, a: Value, b: Value, op: ast.operator, node: ast.AST) -> Value:
    """Counts that are not known take a small number, so that the window they make is executed."""
    if isinstance(op, ast.Mod) and isinstance(a, Const) and isinstance(a.value, str):
        return Unknown()
    counts: list[Const] = []
    for value in (a, b):
        if isinstance(value, Const) and isinstance(value.value, int | float):
            counts.append(value)
        elif (
            isinstance(value, Unknown)
            and value.hint
            and (
                value.hint in machine.ranges
                or COUNTED.search(value.hint)
                or (isinstance(op, ast.Mod) and value is b)
            )
        ):
            counts.append(
                Const(machine.ranges.get(value.hint) or machine.settings.count(value.hint))
            )
    if len(counts) == 2 and (
        isinstance(op, ast.Mod) or any(isinstance(v, Unknown) for v in (a, b))
    ):
        return _arithmetic(machine, counts[0], counts[1], op)
    varying = any(isinstance(v, Const) and v.varying for v in (a, b))
    text = machine.text(node) if isinstance(node, ast.expr) else ""
    return Unknown(" ".join(text.split())[:100], varying=varying)


def _tensors(machine: Machine, a: Value, b: Value, op: ast.operator, node: ast.AST) -> Value:
    if isinstance(a, Tensor) and isinstance(b, Tensor):
        both = merged(a, b)
        if isinstance(op, ast.Div):
            if a.reduction == "sum":
                if b.depth < a.depth:
                    # a total of the whole window, made outside the loop over its micro-batches
                    return replace(a, divided=True, divided_at=machine.place(node))
                ragged = "ignore_index" not in machine.text(node) or _some_ignored(machine)
                return replace(both, reduction="mean", ragged=ragged, graph=a.graph, terms=a.terms)
            return replace(both, terms=a.terms)
        if isinstance(op, ast.Add | ast.Sub):
            return replace(both, terms=a.terms + b.terms if a is not b else a.terms)
        return replace(
            both, masked=a.masked or b.masked or _is_mask(node), terms=max(a.terms, b.terms)
        )
    tensor, other = (a, b) if isinstance(a, Tensor) else (b, a)
    assert isinstance(tensor, Tensor)
    if isinstance(op, ast.Div) and tensor is a:
        return divided(machine, tensor, other, node)
    if isinstance(op, ast.Mult):
        return _weighted(machine, tensor, other, node)
    return replace(tensor)


def _some_ignored(machine: Machine) -> bool:
    from fallline.reader.builders import filled_up

    return filled_up(machine)


def _is_mask(node: ast.AST) -> bool:
    return any("mask" in n.id.lower() for n in ast.walk(node) if isinstance(n, ast.Name))


def divided(machine: Machine, tensor: Tensor, by: Value, node: ast.AST) -> Tensor:
    """A tensor divided by a number."""
    if isinstance(by, Const) and by.value in (1, 1.0):
        return replace(tensor)
    text = (
        machine.text(node.right)
        if isinstance(node, ast.BinOp)
        else machine.text(node.value)
        if isinstance(node, ast.AugAssign)
        else ""
    )
    if isinstance(by, Unknown) and by.hint and not text:
        text = by.hint
    number = (
        float(by.value) if isinstance(by, Const) and isinstance(by.value, int | float) else None
    )
    return replace(
        tensor,
        divided=True,
        divisor=number,
        divided_by=" ".join(text.split()),
        divided_at=machine.place(node),
    )


def _weighted(machine: Machine, tensor: Tensor, by: Value, node: ast.AST) -> Tensor:
    if isinstance(by, Const) and isinstance(by.value, int | float):
        if 0 < abs(by.value) < 1:
            return replace(
                tensor, divided=True, divisor=1 / by.value, divided_at=machine.place(node)
            )
        return replace(tensor)
    if isinstance(by, Unknown) and by.hint.startswith("1"):
        return replace(tensor, divided=True, divided_by=by.hint, divided_at=machine.place(node))
    return replace(tensor, divided=None if not tensor.divided else True)


def merged(a: Tensor, b: Tensor) -> Tensor:
    """A tensor computed from two."""
    graph = True if a.graph or b.graph else (None if a.graph is None or b.graph is None else False)
    if a.divided is b.divided:
        split = a.divided
    elif not _carries(a):
        split = b.divided
    elif not _carries(b):
        split = a.divided
    else:
        split = False if a.divided is False or b.divided is False else None
    return Tensor(
        graph,
        a.sets | b.sets,
        a.forwards | b.forwards,
        a.kept | b.kept,
        split,
        a.divisor or b.divisor,
        a.divided_by or b.divided_by,
        a.divided_at or b.divided_at,
        a.reduction or b.reduction,
        a.ragged or b.ragged,
        a.masked or b.masked,
        a.scaler or b.scaler,
        None,
        a.half if a.half == b.half else a.half or b.half,
        a.length or b.length,
        max(a.terms, b.terms),
        depth=max(a.depth, b.depth),
        in_batch=a.in_batch or b.in_batch,
    )


def _carries(tensor: Tensor) -> bool:
    return bool(tensor.graph) or tensor.reduction is not None


def _unary(machine: Machine, node: ast.UnaryOp) -> Value:
    value = machine.settled(evaluate(machine, node.operand))
    if isinstance(node.op, ast.Not):
        if isinstance(value, Const):
            return Const(not value.value, value.varying)
        if isinstance(value, Unknown):
            return Unknown(f"not {value.hint}")
        return Const(False)
    if (
        isinstance(value, Const)
        and isinstance(node.op, ast.USub)
        and isinstance(value.value, int | float)
    ):
        return Const(-value.value, value.varying)
    return value


def _boolean(machine: Machine, node: ast.BoolOp) -> Value:
    stop_at = isinstance(node.op, ast.Or)
    value: Value = Unknown()
    varying = False
    for part in node.values:
        value = machine.settled(evaluate(machine, part))
        if isinstance(value, Unknown):
            # decided here as in a test of its own, so that whatever depends on it agrees
            hint = value.hint or " ".join(machine.text(part).split())[:120]
            negated = hint.startswith("not ")
            on = (
                machine.settings.switch(
                    hint[4:] if negated else hint, not negated, machine.worth(1)
                )
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


def _sequence(machine: Machine, node: ast.List | ast.Tuple | ast.Set) -> Value:
    items: list[Value] = []
    unclear = False
    for element in node.elts:
        if isinstance(element, ast.Starred):
            inner = machine.settled(evaluate(machine, element.value))
            if isinstance(inner, Sequence):
                items += inner.items
            elif isinstance(inner, Params):
                items.append(inner)
            else:
                unclear = True
        else:
            items.append(evaluate(machine, element))
    return Sequence(items, machine.iteration, unclear)


def _mapping(machine: Machine, node: ast.Dict) -> Value:
    items: dict[Any, Value] = {}
    for index, (key, value) in enumerate(zip(node.keys, node.values, strict=True)):
        found = evaluate(machine, value)
        name = evaluate(machine, key) if key is not None else None
        try:
            items[name.value if isinstance(name, Const) else f"?{index}"] = found
        except TypeError:
            continue
    return Mapping(items, machine.iteration)


def _subscript(machine: Machine, node: ast.Subscript) -> Value:
    value = machine.settled(evaluate(machine, node.value))
    key = evaluate(machine, node.slice)
    if isinstance(value, Mapping):
        if isinstance(key, Const):
            found = value.items.get(key.value) if isinstance(key.value, str | int) else None
            return found if found is not None else Unknown(str(key.value))
        return next(iter(value.items.values()), Unknown())
    if isinstance(value, Sequence):
        if (
            isinstance(key, Const)
            and isinstance(key.value, int)
            and -len(value.items) <= key.value < len(value.items)
        ):
            return value.items[key.value]
        if isinstance(node.slice, ast.Slice):
            return value
        return value.items[0] if value.items else Unknown()
    if isinstance(value, Tensor | Params | Param):
        return value
    if isinstance(value, Thing) and value.kind == "model":
        return value
    if isinstance(value, Unknown):
        return (
            value.part(str(key.value))
            if isinstance(key, Const) and isinstance(key.value, str)
            else value.part("[]")
        )
    if isinstance(value, Bound) and isinstance(value.of, Tensor):
        return value.of
    return Unknown()


def _comprehension(
    machine: Machine, node: ast.ListComp | ast.SetComp | ast.GeneratorExp | ast.DictComp
) -> Value:
    from fallline.reader.loops import stream_of
    from fallline.reader.statements import assign_to

    generator = node.generators[0]
    stream = stream_of(machine, evaluate(machine, generator.iter), None)
    count = min(stream.count, 6) if stream.count is not None else 1
    if stream.kind == "data":
        count = 1
    results: list[Value] = []
    keyed: dict[Any, Value] = {}
    saved = dict(machine.frame.names)
    before = machine.iteration
    machine.loops.append(stream.kind if stream.kind == "params" else "items")
    for index in range(count):
        assign_to(machine, generator.target, stream.item(index), generator.target)
        for inner in node.generators[1:]:
            inner_stream = stream_of(machine, evaluate(machine, inner.iter), None)
            if inner_stream.count == 0:
                continue
            assign_to(machine, inner.target, inner_stream.item(0), inner.target)
        if isinstance(node, ast.DictComp):
            key = evaluate(machine, node.key)
            value = evaluate(machine, node.value)
            try:
                keyed[key.value if isinstance(key, Const) else f"?{index}"] = value
            except TypeError:
                continue
        else:
            results.append(evaluate(machine, node.elt))
    machine.iteration = before
    machine.loops.pop()
    machine.frame.names.clear()
    machine.frame.names.update(saved)
    if isinstance(node, ast.DictComp):
        return Mapping(keyed, machine.iteration)
    used = next((r.grad_of for r in results if isinstance(r, Tensor) and r.grad_of), None)
    if used is not None:
        grads.read(machine, frozenset() if "?" in used else used, "use", node)
    if results and stream.kind == "params" and all(isinstance(r, Param) for r in results):
        return Params(frozenset().union(*(r.sets for r in results if isinstance(r, Param))))
    return Sequence(results, machine.iteration)


def _lambda(machine: Machine, node: ast.Lambda) -> Value:
    return Function(node, machine.module, machine.frame, machine.frame.me)


def _text(machine: Machine, node: ast.JoinedStr) -> Value:
    for part in node.values:
        if isinstance(part, ast.FormattedValue):
            shown = machine.settled(evaluate(machine, part.value))
            if isinstance(shown, Tensor):
                WAITS[0](machine, shown, "print", part.value)
    return Unknown("text")


def _named(machine: Machine, node: ast.NamedExpr) -> Value:
    value = evaluate(machine, node.value)
    machine.assign(node.target.id, value)
    return value


def _inner(machine: Machine, node: ast.Await | ast.Starred | ast.YieldFrom) -> Value:
    return evaluate(machine, node.value)


def _slice(machine: Machine, node: ast.Slice) -> Value:
    return Unknown()


HANDLERS |= {
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
