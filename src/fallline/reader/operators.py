"""Arithmetic on paper: constants, counts that are not known, tensors, lists."""

from __future__ import annotations

import ast

from fallline.api.arithmetic import combined
from fallline.api.values import Const, Params, Sequence, Tensor, Unknown, Value
from fallline.reader.counts import COUNTED
from fallline.reader.machine import Machine
from fallline.syntax.names import UNKNOWN, computed

__all__ = ["MOST_ITEMS", "combine", "joined"]

# Lists longer than this are known by their first items.
MOST_ITEMS = 2_048


def combine(
    machine: Machine, first: Value, second: Value, op: ast.operator, node: ast.AST
) -> Value:
    """Two values under an arithmetic operator."""
    a, b = machine.settled(first), machine.settled(second)
    if isinstance(a, Tensor) or isinstance(b, Tensor):
        return combined(machine, a, b, op, node)
    if isinstance(a, Const) and isinstance(b, Const):
        return _arithmetic(machine, a, b, op)
    if isinstance(a, Sequence) and isinstance(b, Sequence) and isinstance(op, ast.Add):
        return joined(a, b, machine.loops.iteration)
    if isinstance(a, Params) and isinstance(b, Params):
        return Params(a.sets | b.sets)
    if isinstance(a, Sequence) and isinstance(op, ast.Mult):
        times = (
            b.value
            if isinstance(b, Const) and isinstance(b.value, int) and 0 < b.value <= 64
            else 0
        )
        longest = max(1, MOST_ITEMS // max(1, len(a.items)))
        known = 0 < times <= longest
        return Sequence(a.items * min(times or 1, longest), machine.loops.iteration, open=not known)
    return _with_unknown(machine, a, b, op, node)


def joined(a: Sequence, b: Sequence, born: int) -> Sequence:
    """Two lists one after the other."""
    items = [*a.items, *b.items]
    return Sequence(items[:MOST_ITEMS], born, a.open or b.open or len(items) > MOST_ITEMS)


def _arithmetic(machine: Machine, a: Const, b: Const, op: ast.operator) -> Value:
    left, right = a.value, b.value
    if isinstance(op, ast.Mod) and isinstance(left, int) and isinstance(right, int) and a.varying:
        right = machine.counts.small(right)
    found = computed(op, left, right)
    return Unknown() if found is UNKNOWN else Const(found, a.varying or b.varying)


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
                value.hint in machine.counts.ranges
                or COUNTED.search(value.hint)
                or (isinstance(op, ast.Mod) and value is b)
            )
        ):
            counts.append(Const(machine.counts.ranges.get(value.hint) or machine.count(value.hint)))
    if len(counts) == 2 and (
        isinstance(op, ast.Mod) or any(isinstance(v, Unknown) for v in (a, b))
    ):
        return _arithmetic(machine, counts[0], counts[1], op)
    varying = any(isinstance(v, Const) and v.varying for v in (a, b))
    text = machine.text(node) if isinstance(node, ast.expr) else ""
    return Unknown(" ".join(text.split())[:100], varying=varying)
