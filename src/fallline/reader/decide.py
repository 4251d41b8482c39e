"""Tests: which way an if goes, which way to try first, and how much it matters."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable
from typing import Any

from fallline.api.values import Const, Mapping, Sequence, Tensor, Unknown, Value
from fallline.reader.compare import Answer, compare_value, compared, is_number, made, words
from fallline.reader.machine import Machine
from fallline.reader.relevance import acts, acts_here
from fallline.syntax import Module
from fallline.syntax.nodes import walk
from fallline.syntax.once import once

__all__ = ["TESTS", "decide", "how_much", "knob", "truth"]

_JUMPS = (ast.Raise, ast.Return, ast.Continue, ast.Break)


def decide(machine: Machine, node: ast.If | ast.IfExp) -> Answer:
    """Which way an if goes, and whether that depends on the iteration."""
    ways = machine.module.notes("way")
    known: tuple[bool, int] | None = ways.get(node)
    if known is None:
        known = ways[node] = _way(machine, node)
    usual, matters = known
    return truth(machine, node.test, usual, machine.worth(matters))


def how_much(machine: Machine, node: ast.AST, branches: list[ast.stmt]) -> int:
    """How much it matters which of these branches of a statement runs: 0 not at all, 1 perhaps, 2 the protocol is in them."""
    known = machine.module.notes("matters")
    if node not in known:
        known[node] = _matters(machine, branches)
    return machine.worth(known[node])


def _way(machine: Machine, node: ast.If | ast.IfExp) -> tuple[bool, int]:
    """The value of a test that is taken first where it is not known, and how much it matters; read off the text."""
    match node:
        case ast.IfExp():
            scales = _scales(node.body) or _scales(node.orelse)
            return True, 2 if scales or acts_here(machine.module, [node]) else 1
        case ast.If(body=body, orelse=orelse):
            guard = isinstance(body[-1], _JUMPS) or _exits(body[-1]) or _ends(body[-1])
            usual = not guard or (bool(orelse) and not isinstance(body[-1], ast.Raise))
            if any(_says(s) in _WITHOUT_SCALER for s in body):
                usual = False  # float16 first: that is the one with a scaler
            if any(map(_gives_sampler, body)):
                usual = True  # several ranks first: not a guard, though it returns
            return usual, _matters(machine, [*body, *orelse])


def _matters(machine: Machine, branches: list[ast.stmt]) -> int:
    if acts_here(machine.module, branches) or _binds(branches):
        return 2
    perhaps = any(_says(s) in _WITHOUT_SCALER for s in branches)
    if perhaps or acts(machine.module, branches):
        return 1
    return int(not _turned(branches).isdisjoint(_decisive(machine.module)))


def knob(machine: Machine, node: ast.Assign) -> Value | None:
    """`distributed = False` in a script that asks `if distributed:` around what matters: people edit it, so both are read."""
    match node:
        case ast.Assign([ast.Name(name) as target], ast.Constant(bool(written))):
            module = machine.module
            constant = len(module.bindings(name, module.scope(target))) == 1
            if constant and not machine.around.inside_model and name in _decisive(module):
                if not module.in_loop(node):
                    return Const(machine.settings.knob(name, written))
    return None


def _turned(branches: list[ast.stmt]) -> set[str]:
    """The names that a branch sets to True or False: `distributed = True`."""
    return {
        target.id
        for statement in branches
        for node in walk(statement)
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Constant)
        for target in node.targets
        if isinstance(node.value.value, bool) and isinstance(target, ast.Name)
    }


@once
def _decisive(module: Module) -> frozenset[str]:
    """The names that a file asks, all by themselves, around what matters: `if distributed:`."""
    return frozenset(
        node.test.id
        for node in module.all(ast.If)
        if isinstance(node.test, ast.Name)
        and (acts_here(module, [*node.body, *node.orelse]) or _binds([*node.body, *node.orelse]))
    )


def _exits(statement: ast.AST) -> bool:
    match statement:
        case ast.Expr(ast.Call(func=ast.Attribute(attr="exit" | "_exit"))):
            return True
        case ast.Expr(ast.Call(func=ast.Name("exit" | "quit"))):
            return True
    return False


_END = re.compile(r"(?i)(^|_)(finish|done|stop|exit|terminat|converged|early_?stop)")


def _ends(statement: ast.stmt) -> bool:
    """`self.finished = True`: whoever asks for it ends a loop."""
    match statement:
        case ast.Assign([target], ast.Constant(True)):
            return _END.search(_last(target)) is not None
    return False


def _binds(body: list[ast.stmt]) -> bool:
    """Whether a branch makes, replaces or scales something the protocol uses."""
    for statement in body:
        match statement:
            case ast.Assign(targets=targets, value=value):
                pass
            case ast.AugAssign(target=target, value=value):
                targets = [target]
            case _ if _gives_sampler(statement):
                return True
            case _:
                continue
        for name in map(_last, targets):
            if made(name) or (name.lower().endswith("loss") and _is_plain(value)):
                return True
    return False


def _gives_sampler(statement: ast.stmt) -> bool:
    """`return DistributedSampler(dataset, shuffle=shuffle)` of a helper that chooses one."""
    match statement:
        case ast.Return(ast.Call(maker)):
            return _last(maker).endswith("DistributedSampler")
    return False


_WITHOUT_SCALER = frozenset({"bf16", "bfloat16", "bf16-mixed"})


def _says(statement: ast.stmt) -> str:
    """The text that a statement gives a name: `self.precision = "bf16"`."""
    match statement:
        case ast.Assign(value=ast.Constant(str(said))):
            return said
    return ""


def _is_plain(value: ast.expr) -> bool:
    return isinstance(value, ast.BinOp | ast.Constant | ast.Name | ast.Attribute)


def _last(node: ast.expr) -> str:
    """The last word of a name."""
    match node:
        case ast.Attribute(attr=name) | ast.Name(id=name):
            return name
    return ""


def _scales(node: ast.expr) -> bool:
    """`loss / k`: one way of a choice that says how the loss is scaled."""
    match node:
        case ast.BinOp(left, ast.Div() | ast.Mult()):
            return _last(left).lower().endswith("loss")
    return False


def truth(machine: Machine, node: ast.expr, usual: bool = True, matters: int = 2) -> Answer:
    """The value of a test in this trace, and whether it depends on the iteration.

    `usual` is the value taken first where it is not known.
    """
    match node:
        case ast.BoolOp():
            return _several(machine, node, usual, matters)
        case ast.UnaryOp(ast.Not(), operand):
            value, varying = truth(machine, operand, not usual, matters)
            return not value, varying
        case ast.Compare(ops=[_]):
            return compared(machine, node, usual, matters)
    return _truthy(machine, machine.evaluate(node), node, _finite(node, usual), matters)


def _finite(node: ast.expr, usual: bool) -> bool:
    """`torch.isfinite(grad_norm)` is true and `loss.isnan().any()` is false, as a rule: what happens otherwise comes second."""
    match node:
        case ast.Call(ast.Attribute(ast.Call() as inner, "any" | "all" | "item")):
            return _finite(inner, usual)
        case ast.Call(ast.Attribute(attr=name) | ast.Name(name)):
            if name == "isfinite":
                return True
            return False if name in {"isnan", "isinf"} else usual
    return usual


def _several(machine: Machine, node: ast.BoolOp, usual: bool, matters: int) -> Answer:
    """`a and b`, `a or b`."""
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


def _iterates(machine: Machine, node: ast.expr) -> bool:
    """Whether a part of a test is known and depends on the iteration."""
    if not isinstance(node, ast.Compare | ast.Name):
        return False
    value = machine.settled(machine.evaluate(node))
    return isinstance(value, Const) and value.varying


def _truthy(machine: Machine, found: Value, node: ast.expr, usual: bool, matters: int) -> Answer:
    value = machine.settled(found)
    match value:
        case Const():
            machine.counts.compared += is_number(value)
            return bool(value.value), value.varying
        case Sequence():
            return bool(value.items) or value.open, False
        case Mapping():
            return bool(value.items), False
        case Unknown(hint=hint) if hint:
            return machine.switch(words(hint), usual, matters), False
        case Unknown() | Tensor():
            return machine.switch(words(machine.text(node)), usual, matters), False
    return True, False


def _conditional(machine: Machine, node: ast.IfExp) -> Value:
    value, varying = decide(machine, node)
    with machine.inside(machine.place(node.test), varying, machine.text(node.test)):
        return machine.evaluate(node.body if value else node.orelse)


TESTS: dict[type, Callable[[Machine, Any], Value]] = {
    ast.Compare: compare_value,
    ast.IfExp: _conditional,
}
