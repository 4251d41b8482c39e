"""Tests: what is known is computed, what is not is a switch with one value for the whole trace."""

from __future__ import annotations

import ast
import operator
import re
from collections.abc import Callable
from typing import Any

from fallline.api.values import Const, Mapping, Param, Sequence, Tensor, Unknown, Value
from fallline.reader.counts import COUNTED, SIZE, SIZED
from fallline.reader.machine import Machine
from fallline.reader.relevance import acts, acts_here

__all__ = ["TESTS", "decide", "truth"]

_MADE = re.compile(
    r"scaler|optim|sched|sampler|autocast|amp|ctx|context|^model$|^net$|ddp|loader|accelerator|fabric|sync"
)
_JUMPS = (ast.Raise, ast.Return, ast.Continue, ast.Break)
_COMPARE: dict[type, Any] = {
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
}


def decide(machine: Machine, node: ast.If | ast.IfExp) -> tuple[bool, bool]:
    """Which way an if goes, and whether that depends on the iteration."""
    ways = machine.module.notes("way")
    known: tuple[bool, int] | None = ways.get(node)
    if known is None:
        known = ways[node] = _way(machine, node)
    usual, matters = known
    return truth(machine, node.test, usual, machine.worth(matters))


def _way(machine: Machine, node: ast.If | ast.IfExp) -> tuple[bool, int]:
    """The value of a test that is taken first where it is not known, and how much it matters; read off the text."""
    body = node.body if isinstance(node.body, list) else [node.body]
    orelse = node.orelse if isinstance(node.orelse, list) else [node.orelse]
    guard = isinstance(body[-1], _JUMPS) or _exits(body[-1])
    if not isinstance(node, ast.IfExp):
        branches = [*body, *orelse]
        if acts_here(machine.module, branches) or _binds(branches):
            matters = 2
        else:
            matters = 1 if acts(machine.module, branches) else 0
    else:
        matters = (
            2
            if acts_here(machine.module, [node]) or _scales(node.body) or _scales(node.orelse)
            else 1
        )
    return not guard or (bool(orelse) and not isinstance(body[-1], ast.Raise)), matters


def _exits(statement: ast.AST) -> bool:
    if isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Call):
        called = statement.value.func
        return (isinstance(called, ast.Attribute) and called.attr in {"exit", "_exit"}) or (
            isinstance(called, ast.Name) and called.id in {"exit", "quit"}
        )
    return False


def _binds(body: list[ast.stmt]) -> bool:
    """Whether a branch makes, replaces or scales something the protocol uses."""
    for statement in body:
        if isinstance(statement, ast.Assign | ast.AugAssign):
            targets = statement.targets if isinstance(statement, ast.Assign) else [statement.target]
            for target in targets:
                last = _last(target)
                if _MADE.search(last.lower()) or (
                    last.lower().endswith("loss")
                    and isinstance(
                        statement.value, ast.BinOp | ast.Constant | ast.Name | ast.Attribute
                    )
                ):
                    return True
    return False


def _last(node: ast.expr) -> str:
    """The last word of a name."""
    if isinstance(node, ast.Attribute):
        return node.attr
    return node.id if isinstance(node, ast.Name) else ""


def _scales(node: ast.expr) -> bool:
    """`loss / k`: one way of a choice that says how the loss is scaled."""
    return (
        isinstance(node, ast.BinOp)
        and isinstance(node.op, ast.Div | ast.Mult)
        and isinstance(node.left, ast.Name | ast.Attribute)
        and _last(node.left).lower().endswith("loss")
    )


def truth(
    machine: Machine, node: ast.expr, usual: bool = True, matters: int = 2
) -> tuple[bool, bool]:
    """The value of a test in this trace, and whether it depends on the iteration.

    `usual` is the value taken first where it is not known.
    """
    if isinstance(node, ast.BoolOp):
        stop_at = isinstance(node.op, ast.Or)
        varying = False
        value = not stop_at
        # `(i + 1) % k == 0 or self.trainer.is_last_batch`: beside a test of the iteration the unknown one is the exception
        exceptional = (
            stop_at and len(node.values) > 1 and any(_iterates(machine, p) for p in node.values)
        )
        for part in node.values:
            value, changes = truth(machine, part, usual and not exceptional, matters)
            varying = varying or changes
            if value is stop_at:
                break
        return value, varying
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
        value, varying = truth(machine, node.operand, not usual, matters)
        return not value, varying
    if isinstance(node, ast.Compare) and len(node.ops) == 1:
        return _compared(machine, node, usual, matters)
    return _truthy(machine, machine.evaluate(node), node, usual, matters)


def _iterates(machine: Machine, node: ast.expr) -> bool:
    """Whether a part of a test is known and depends on the iteration."""
    value = (
        machine.settled(machine.evaluate(node))
        if isinstance(node, ast.Compare | ast.Name)
        else None
    )
    return isinstance(value, Const) and value.varying


def _truthy(
    machine: Machine, found: Value, node: ast.expr, usual: bool, matters: int
) -> tuple[bool, bool]:
    value = machine.settled(found)
    if isinstance(value, Const):
        machine.counts.compared += _is_number(value)
        return bool(value.value), value.varying
    if isinstance(value, Sequence):
        return bool(value.items) or value.open, False
    if isinstance(value, Mapping):
        return bool(value.items), False
    if isinstance(value, Unknown | Tensor):
        hint = value.hint if isinstance(value, Unknown) and value.hint else machine.text(node)
        return machine.switch(_words(hint), usual, matters), False
    return True, False


def _compared(machine: Machine, node: ast.Compare, usual: bool, matters: int) -> tuple[bool, bool]:
    op = node.ops[0]
    left, right = (
        machine.settled(machine.evaluate(node.left)),
        machine.settled(machine.evaluate(node.comparators[0])),
    )
    if (
        isinstance(op, ast.Is | ast.IsNot | ast.Eq | ast.NotEq)
        and isinstance(right, Const)
        and right.value is None
    ):
        is_none, varying = _is_none(
            machine, left, node.left, usual is isinstance(op, ast.Is | ast.Eq), matters
        )
        return is_none is isinstance(op, ast.Is | ast.Eq), varying
    if isinstance(left, Const) and isinstance(right, Const):
        known = _both_known(machine, op, left, right)
        if known is not None:
            return known, left.varying or right.varying
    if isinstance(op, ast.Eq | ast.NotEq):
        for one, other in ((left, right), (right, left)):
            if (
                isinstance(one, Unknown)
                and one.hint
                and isinstance(other, Const)
                and isinstance(other.value, str)
            ):
                same = machine.settings.equals(
                    _words(one.hint), [other.value], usual is isinstance(op, ast.Eq), matters
                )
                return same is isinstance(op, ast.Eq), False
    if isinstance(op, ast.In | ast.NotIn):
        return _contained(machine, op, left, right, node, usual, matters)
    for one, other in ((left, right), (right, left)):
        if (
            isinstance(one, Unknown)
            and (COUNTED.search(one.hint) or (one.hint in machine.counts.ranges and _varies(other)))
            and isinstance(other, Const)
            and isinstance(other.value, int)
            and not isinstance(other.value, bool)
            and op.__class__ in _COMPARE
        ):
            count = machine.counts.ranges.get(one.hint) or machine.settings.count(
                one.hint, compared=not other.varying and not machine.around.inside_model
            )
            number = other.value
            pair = (count, number) if one is left else (number, count)
            return bool(_COMPARE[op.__class__](*pair)), other.varying
    for one, other in ((left, right), (right, left)):
        if (
            isinstance(one, Unknown)
            and SIZED.search(one.hint)
            and isinstance(other, Const)
            and other.varying
            and isinstance(other.value, int)
        ):
            size = machine.settings.count(one.hint, usual=SIZE)
            pair = (size, other.value) if one is left else (other.value, size)
            if op.__class__ in _COMPARE:
                return bool(_COMPARE[op.__class__](*pair)), True
    if isinstance(op, ast.NotEq | ast.IsNot):
        same = machine.switch(_pair(machine, node, left, right), not usual, matters)
        return not same, False
    text = (
        _pair(machine, node, left, right)
        if isinstance(op, ast.Eq | ast.Is)
        else _words(machine.text(node))
    )
    return machine.switch(text, usual, matters), False


def _varies(value: Value) -> bool:
    return isinstance(value, Const) and value.varying


def _is_number(value: Const) -> bool:
    return isinstance(value.value, int | float) and not isinstance(value.value, bool)


def _is_none(
    machine: Machine, value: Value, node: ast.expr, usual: bool, matters: int
) -> tuple[bool, bool]:
    if isinstance(value, Const):
        return value.value is None, value.varying
    if isinstance(value, Unknown):
        hint = value.hint or machine.text(node)
        if hint.endswith(".grad") or _computed_here(machine, node):
            return False, False
        return not machine.switch(_words(hint), not usual, matters), False
    if isinstance(value, Param):
        return False, False
    return False, False


def _computed_here(machine: Machine, node: ast.expr) -> bool:
    """What this iteration computed (`loss = compute(batch)`): None is an exception among batches, and no setting."""
    if (
        not isinstance(node, ast.Name)
        or not machine.loops.iteration
        or _MADE.search(node.id.lower())
    ):
        return False
    if machine.frame.fresh.get(node.id) != machine.loops.iteration:
        return False
    bound = machine.module.bindings(node.id, machine.module.scope(node))
    return (
        bool(bound)
        and all(
            isinstance(machine.module.statement(b), ast.Assign)
            for b in bound
            if isinstance(b, ast.Name)
        )
        and not any(isinstance(b, ast.arg) for b in bound)
    )


def _both_known(machine: Machine, op: ast.cmpop, left: Const, right: Const) -> bool | None:
    a, b = left.value, right.value
    machine.counts.compared += _is_number(left) or _is_number(right)
    if isinstance(a, int) and isinstance(b, int) and left.varying != right.varying:
        # a counter against a literal: literals shrink as they do in loops and modulo
        a, b = (a, machine.counts.small(b)) if left.varying else (machine.counts.small(a), b)
    if isinstance(op, ast.Is):
        return a is b or (a == b and isinstance(a, bool | int | str))
    if isinstance(op, ast.IsNot):
        return not (a is b or (a == b and isinstance(a, bool | int | str)))
    try:
        if isinstance(op, ast.In):
            return a in b
        if isinstance(op, ast.NotIn):
            return a not in b
        return bool(_COMPARE[op.__class__](a, b))
    except (TypeError, KeyError):
        return None


def _contained(
    machine: Machine,
    op: ast.cmpop,
    left: Value,
    right: Value,
    node: ast.Compare,
    usual: bool,
    matters: int,
) -> tuple[bool, bool]:
    inside = isinstance(op, ast.In)
    if isinstance(left, Const):
        if (
            isinstance(right, Sequence)
            and all(isinstance(i, Const) for i in right.items)
            and not right.open
        ):
            return (
                left.value in [i.value for i in right.items if isinstance(i, Const)]
            ) is inside, left.varying
        if isinstance(right, Mapping) and right.items:
            return (left.value in right.items) is inside, left.varying
    if (
        isinstance(left, Unknown)
        and left.hint
        and isinstance(right, Sequence)
        and right.items
        and not right.open
    ):
        choices = [
            i.value for i in right.items if isinstance(i, Const) and isinstance(i.value, str)
        ]
        if len(choices) == len(right.items):
            return machine.settings.equals(
                _words(left.hint), choices, usual is inside, matters
            ) is inside, False
    text = _words(
        f"{_said(machine, left, node.left)} in {_said(machine, right, node.comparators[0])}"
    )
    value = machine.switch(text, usual is inside, matters)
    return value is inside, False


def _pair(machine: Machine, node: ast.Compare, left: Value, right: Value) -> str:
    return _words(
        f"{_said(machine, left, node.left)} == {_said(machine, right, node.comparators[0])}"
    )


def _said(machine: Machine, value: Value, node: ast.expr) -> str:
    if isinstance(value, Unknown) and value.hint:
        return value.hint
    if isinstance(value, Const) and not value.varying:
        return repr(value.value)
    return machine.text(node)


def _words(text: str) -> str:
    return " ".join(text.split())[:120]


def _compare_value(machine: Machine, node: ast.Compare) -> Value:
    """A comparison as a value: known, or something unknown that a later test on it decides the same way."""
    if len(node.ops) != 1:
        return Unknown(_words(machine.text(node)))
    left = machine.settled(machine.evaluate(node.left))
    right = machine.settled(machine.evaluate(node.comparators[0]))
    if any(isinstance(v, Tensor) for v in (left, right)):
        return Tensor(False)
    if any(
        isinstance(v, Unknown) and not COUNTED.search(v.hint) and not SIZED.search(v.hint)
        for v in (left, right)
    ):
        equal = isinstance(node.ops[0], ast.Eq)
        return Unknown(_pair(machine, node, left, right) if equal else _words(machine.text(node)))
    value, varying = truth(machine, node, True, 0)
    return Const(value, varying)


def _conditional(machine: Machine, node: ast.IfExp) -> Value:
    value, varying = decide(machine, node)
    with machine.inside(machine.place(node.test), varying, machine.text(node.test)):
        return machine.evaluate(node.body if value else node.orelse)


TESTS: dict[type, Callable[[Machine, Any], Value]] = {
    ast.Compare: _compare_value,
    ast.IfExp: _conditional,
}
