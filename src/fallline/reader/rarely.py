"""What a loop does now and then: `if epoch % 5 == 0: evaluate(model)`.

A loop that goes on for long is executed a few times, and a test on its counter that is false in the first iteration would never
be true on paper. So the counter jumps to where it is.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator

from fallline.api.values import Const
from fallline.reader.machine import Machine
from fallline.reader.relevance import relevant
from fallline.syntax import Module
from fallline.syntax.nodes import walk

__all__ = ["next_rare"]

_FAR = 64


def next_rare(
    machine: Machine, node: ast.For | ast.AsyncFor, begin: Callable[[int], None]
) -> int | None:
    """How many iterations after the first one to pass over, so that the next does what the first one did not; None where there is nothing like that."""
    unmet = [test for test in _tests(machine.module, node) if _holds(machine, test) is False]
    if not unmet:
        return None
    try:
        for index in range(1, _FAR):
            begin(index)
            if any(_holds(machine, test) for test in unmet):
                return index - 1
        return None
    finally:
        begin(0)


def _holds(machine: Machine, test: ast.expr) -> bool | None:
    """Its value now; None where that does not depend on the iteration, or is not known."""
    match test:
        case ast.BoolOp(op, values):
            parts = [_holds(machine, value) for value in values]
            decisive = isinstance(op, ast.Or)
            if decisive in parts:
                return decisive
            return None if set(parts) == {None} else not decisive
        case ast.UnaryOp(ast.Not(), operand):
            held = _holds(machine, operand)
            return None if held is None else not held
    with machine.looking():
        value = machine.settled(machine.evaluate(test))
    return bool(value.value) if isinstance(value, Const) and value.varying else None


def _tests(module: Module, node: ast.For | ast.AsyncFor) -> list[ast.expr]:
    """Those on a remainder that a loop itself makes, around something that matters."""
    known = module.notes("now and then")
    if node not in known:
        known[node] = [
            test.test
            for test in _ifs(node.body)
            if relevant(module, test.body)
            and any(
                isinstance(part, ast.BinOp) and isinstance(part.op, ast.Mod)
                for part in walk(test.test)
            )
        ]
    found: list[ast.expr] = known[node]
    return found


def _ifs(body: list[ast.stmt]) -> Iterator[ast.If]:
    """Those of a loop itself: not of loops and functions in it."""
    for statement in body:
        match statement:
            case ast.If(body=inner, orelse=other):
                yield statement
                yield from _ifs([*inner, *other])
            case ast.With(body=inner) | ast.Try(body=inner):
                yield from _ifs(inner)
