"""Arithmetic on paper: constants, counts that are not known, tensors, lists."""

from __future__ import annotations

import ast

from fallline.api.arithmetic import combined
from fallline.api.values import Const, Params, Sequence, Tensor, Unknown, Value, replace
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
    match a, op, b:
        case (Tensor(), _, _) | (_, _, Tensor()):
            found = combined(machine, a, b, op, node)
            return _forgotten(found) if not machine.around.recording else found
        case Const(), _, Const():
            return _arithmetic(machine, a, b, op)
        case Sequence(), ast.Add(), Sequence():
            return joined(a, b, machine.loops.iteration)
        case Params(), _, Params():
            return Params(a.sets | b.sets)
        case Sequence(), ast.Mult(), Const(int(times)) if 0 < times <= 64:
            return _repeated(a, times, machine.loops.iteration)
        case Sequence(), ast.Mult(), _:
            return Sequence(a.items * 1, machine.loops.iteration, open=True)
    return _with_unknown(machine, a, b, op, node)


def _forgotten(value: Value) -> Value:
    """What is computed under no_grad has no graph."""
    if not isinstance(value, Tensor):
        return value
    return replace(value, graph=False, forwards=frozenset(), kept=frozenset())


def _repeated(items: Sequence, times: int, born: int) -> Sequence:
    most = max(1, MOST_ITEMS // max(1, len(items.items)))
    return Sequence(items.items * min(times, most), born, open=times > most)


def joined(a: Sequence, b: Sequence, born: int) -> Sequence:
    """Two lists one after the other."""
    items = [*a.items, *b.items]
    return Sequence(items[:MOST_ITEMS], born, a.open or b.open or len(items) > MOST_ITEMS)


def _arithmetic(machine: Machine, a: Const, b: Const, op: ast.operator) -> Value:
    left, right = a.value, b.value
    match left, op, right:
        case int(), ast.Mod(), int() if a.varying:
            right = machine.counts.on_paper(b)
    found = computed(op, left, right)
    # `len(loader) - 1` is still a place in the data
    batches = isinstance(op, ast.Add | ast.Sub) and (a.batches or b.batches)
    return Unknown() if found is UNKNOWN else Const(found, a.varying or b.varying, batches)


def _with_unknown(machine: Machine, a: Value, b: Value, op: ast.operator, node: ast.AST) -> Value:
    """Counts that are not known take a small number, so that the window they make is executed."""
    remainder = isinstance(op, ast.Mod)
    match a:
        case Const(str()) if remainder:
            return Unknown()
    counts: list[Const] = []
    for value in (a, b):
        match value:
            case Const(int() | float()):
                counts.append(value)
            case Unknown(hint=hint) if hint and (
                hint in machine.counts.ranges or COUNTED.search(hint) or (remainder and value is b)
            ):
                counts.append(Const(machine.counts.ranges.get(hint) or machine.count(hint)))
    if len(counts) == 2 and (remainder or any(isinstance(v, Unknown) for v in (a, b))):
        match op, found := _arithmetic(machine, counts[0], counts[1], op):
            case ast.FloorDiv(), Const(0):
                pass  # `batch_size // micro_batch_size` is no window of 0: the small number was too small
            case _:
                return found
    varying = any(isinstance(v, Const) and v.varying for v in (a, b))
    text = machine.text(node) if isinstance(node, ast.expr) else ""
    return Unknown(" ".join(text.split())[:100], varying=varying)
