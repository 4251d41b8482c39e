"""Statements, carried out one by one. Loops are in loops.py, tests in decide.py."""

from __future__ import annotations

import ast
from collections.abc import Callable, Mapping
from typing import Any

from fallline.api import gradients
from fallline.api.paper import Test
from fallline.api.values import (
    NONE,
    Class,
    Const,
    Function,
    Param,
    Sequence,
    Tensor,
    Thing,
    Unknown,
    replace,
)
from fallline.reader import contexts, loops
from fallline.reader.assign import assign_to
from fallline.reader.decide import decide, how_much, knob, truth
from fallline.reader.loops import BREAK, CONTINUE, RETURN
from fallline.reader.machine import Machine
from fallline.reader.names import imported
from fallline.reader.operators import combine, joined
from fallline.syntax.nodes import below, is_name, written

__all__ = ["STATEMENTS"]


def _expression(machine: Machine, node: ast.Expr) -> None:
    if not isinstance(node.value, ast.Constant):
        machine.evaluate(node.value)


def _assign(machine: Machine, node: ast.Assign) -> None:
    grows = _adds_to_itself(node)
    before = machine.settled(machine.evaluate(node.targets[0])) if grows else None
    value = knob(machine, node) or machine.evaluate(node.value)
    if grows and isinstance(value, Tensor) and value.graph:
        added = value
        if isinstance(before, Tensor):
            added = replace(
                value, forwards=value.forwards - before.forwards, kept=value.kept - before.kept
            )
        value = gradients.accumulate(machine, node, added, value, _born(machine, node.targets[0]))
    for target in node.targets:
        assign_to(machine, target, value, node)


def _born(machine: Machine, target: ast.expr) -> int:
    """The iteration that last gave a name its value; an item is as old as what holds it."""
    match target:
        case ast.Subscript(holder):
            return _born(machine, holder)
        case ast.Name(name):
            return machine.frame.fresh.get(name, 0)
    return 0


def _adds_to_itself(node: ast.Assign) -> bool:
    """`total = total + loss`, and a running average: `self.avg = 0.9 * self.avg + 0.1 * loss`. A gradient is no sum: it is cleared."""
    match node:
        case ast.Assign([ast.Attribute(attr="grad"), *_]):
            return False
        case ast.Assign([target, *_], ast.BinOp(left, ast.Add(), right)):
            parts = [part for side in (left, right) for part in _scaled(side)]
            return any(_same_name(target, part) for part in parts)
    return False


def _scaled(side: ast.expr) -> tuple[ast.expr, ...]:
    """The factors of a product; anything else is its own."""
    match side:
        case ast.BinOp(left, ast.Mult(), right):
            return left, right
    return (side,)


def _same_name(one: ast.expr, other: ast.expr) -> bool:
    """The same name, the same attribute of the same name, the same item: `table[key]`, `table.get(key, 0)`."""
    match one, other:
        case ast.Subscript(of, key), ast.Subscript(held, asked):
            return written(key) == written(asked) and _same_name(of, held)
        case ast.Subscript(of, key), ast.Call(ast.Attribute(held, "get"), [asked, _]):
            return written(key) == written(asked) and _same_name(of, held)
        case ast.Attribute(of, name), ast.Attribute(held, asked_name):
            return name == asked_name and _same_name(of, held)
        case ast.Name(name), ast.Name(asked_name):
            return name == asked_name
    return False


def _annotated(machine: Machine, node: ast.AnnAssign) -> None:
    if node.value is not None:
        assign_to(machine, node.target, machine.evaluate(node.value), node)


def _augmented(machine: Machine, node: ast.AugAssign) -> None:
    old = machine.settled(machine.evaluate(node.target))
    value = machine.evaluate(node.value)
    match old, value:
        case ((Unknown() | Thing()), _) if "def __iadd__" in machine.module.source.text:
            return  # a meter of the program's own: what it keeps is its to say
        case Tensor(grad_of=frozenset() as sets), _:
            gradients.write(machine, sets, _operation(node.op), node)
            return
        case Param(sets), _:
            gradients.used(machine, sets, node)
            return
        case Sequence(), Sequence():
            longer = joined(old, value, old.born)
            old.items, old.open = longer.items, longer.open
            return
    new = combine(machine, old, value, node.op, node)
    match new, node:
        case Const(number), _ if machine.loops.iteration:
            new = Const(number, True)
        case Tensor(), ast.AugAssign(ast.Subscript()) if not _has_graph(value):
            return  # `totals[1] += len(batch)`: the tensor keeps what it had
        case Tensor(graph=True), ast.AugAssign(op=ast.Add()) if isinstance(value, Tensor):
            new = gradients.accumulate(machine, node, value, new, _born(machine, node.target))
    assign_to(machine, node.target, new, node)


def _has_graph(value: object) -> bool:
    return isinstance(value, Tensor) and value.graph is not False


def _operation(op: ast.operator) -> gradients.Op:
    match op:
        case ast.Div() | ast.FloorDiv():
            return "div"
        case ast.Mult():
            return "mul"
        case ast.Add() | ast.Sub():
            return "add"
    return "other"


def _if(machine: Machine, node: ast.If) -> str | None:
    value, varying = decide(machine, node)
    body = node.body if value else node.orelse
    if varying and not value and isinstance(node.body[-1], ast.Continue):
        machine.loops.passed.append(
            machine.place(node.test)
        )  # what follows is reached only past this test
    if not body:
        return None
    text = _said(machine, node.test) if varying else machine.text(node.test)
    machine.around.tests.append(Test(machine.place(node.test), varying, text))
    try:
        return machine.run(body)
    finally:
        machine.around.tests.pop()


def _said(machine: Machine, test: ast.expr) -> str:
    """What a test asks; of a flag, what was asked where it was set: `update_grad=(i + 1) % accum_iter == 0`."""
    held = machine.settled(machine.evaluate(test)) if isinstance(test, ast.Name) else None
    return (held.said if isinstance(held, Const) else "") or machine.text(test)


def _with(machine: Machine, node: ast.With | ast.AsyncWith) -> str | None:
    with contexts.entered_all(machine, node):
        return machine.run(node.body)


def _try(machine: Machine, node: ast.Try) -> str | None:
    catches = machine.loops.iteration > 0 and any(map(_catches_errors, node.handlers))
    machine.around.caught += catches
    machine.around.tried += bool(node.handlers)
    try:
        jump = machine.run(_at_the_end(machine, node) or node.body)
    finally:
        machine.around.caught -= catches
        machine.around.tried -= bool(node.handlers)
    if jump is None:
        jump = machine.run(node.orelse)
    return machine.run(node.finalbody) or jump


def _catches_errors(handler: ast.ExceptHandler) -> bool:
    kinds = handler.type.elts if isinstance(handler.type, ast.Tuple) else [handler.type]
    return any(
        kind is None or is_name(kind, "RuntimeError") or is_name(kind, "Exception")
        for kind in kinds
    )


def _at_the_end(machine: Machine, node: ast.Try) -> list[ast.stmt]:
    """What a `next(batches)` does when there are no more: on paper, the second time it is met in a trace."""
    first = node.body[0]
    ends = [h for h in node.handlers if h.type is not None and _catches_the_end(h.type)]
    if not ends or len(node.body) > 2 or not isinstance(first, ast.Assign):
        return []
    if any(below(h, ast.Break, ast.Return, ast.Raise) for h in ends):
        return []
    machine.counts.tried[id(node)] = machine.counts.tried.get(id(node), 0) + 1
    return ends[0].body if machine.counts.tried[id(node)] == 2 else []


def _catches_the_end(caught: ast.expr) -> bool:
    return any(n.id == "StopIteration" for n in below(caught, ast.Name))


def _return(machine: Machine, node: ast.Return) -> str:
    machine.returned = machine.evaluate(node.value) if node.value is not None else NONE
    return RETURN


def _function(machine: Machine, node: ast.FunctionDef | ast.AsyncFunctionDef) -> None:
    machine.assign(node.name, Function(node, machine.module, machine.frame))


def _class(machine: Machine, node: ast.ClassDef) -> None:
    machine.assign(node.name, Class(node, machine.module))


def _import(machine: Machine, node: ast.Import | ast.ImportFrom) -> None:
    module = machine.module
    for alias in node.names:
        name = alias.asname or alias.name.partition(".")[0]
        if name in module.imports:
            machine.assign(name, imported(machine, module, module.imports[name]))


def _global(machine: Machine, node: ast.Global) -> None:
    machine.frame.globals.update(node.names)


def _nonlocal(machine: Machine, node: ast.Nonlocal) -> None:
    # the name lives in the frame around; writing it here too keeps one value per trace
    for name in node.names:
        machine.frame.names.setdefault(name, machine.lookup(name))


def _match(machine: Machine, node: ast.Match) -> str | None:
    machine.evaluate(node.subject)
    matters = how_much(machine, node, [s for case in node.cases for s in case.body])
    for index, case in enumerate(node.cases):
        last = index == len(node.cases) - 1
        key = f"{machine.text(node.subject)} matches case {index + 1}"
        if last or machine.switch(key, index == 0, matters):
            return machine.run(case.body)
    return None


def _assert(machine: Machine, node: ast.Assert) -> None:
    truth(machine, node.test, True, 0)


def _raise(machine: Machine, node: ast.Raise) -> str:
    machine.returned = Unknown()
    forced = machine.settings.forced and not _is_all(machine, node)
    if forced and not machine.around.tried and not _is_abstract(node):
        machine.fail()  # the choice that this execution tries is one that the program refuses
    return RETURN


def _is_all(machine: Machine, node: ast.Raise) -> bool:
    """A function that does nothing else refuses whatever the choice is: `__init__` of a class that nobody may instantiate."""
    body = getattr(machine.calling[-1], "body", None) if machine.calling else None
    return isinstance(body, list) and all(s is node or isinstance(s, ast.Expr) for s in body)


def _is_abstract(node: ast.Raise) -> bool:
    """`raise NotImplementedError`: a subclass that is not in view does something here."""
    match node.exc:
        case ast.Name(name) | ast.Call(ast.Name(name)):
            return name == "NotImplementedError"
    return False


def _delete(machine: Machine, node: ast.Delete) -> None:
    for target in node.targets:
        match target:
            case ast.Name(name):
                machine.frame.names.pop(name, None)
            case ast.Subscript(holder, ast.Slice()):
                emptied = machine.settled(machine.evaluate(holder))
                if isinstance(emptied, Sequence):
                    emptied.items.clear()
                    emptied.born = machine.loops.iteration  # as good as new


STATEMENTS: Mapping[type, Callable[[Machine, Any], str | None]] = {
    ast.Expr: _expression,
    ast.Assign: _assign,
    ast.AnnAssign: _annotated,
    ast.AugAssign: _augmented,
    ast.If: _if,
    ast.With: _with,
    ast.AsyncWith: _with,
    ast.Try: _try,
    ast.TryStar: _try,
    ast.Return: _return,
    ast.For: loops.run_for,
    ast.AsyncFor: loops.run_for,
    ast.While: loops.run_while,
    ast.FunctionDef: _function,
    ast.AsyncFunctionDef: _function,
    ast.ClassDef: _class,
    ast.Import: _import,
    ast.ImportFrom: _import,
    ast.Global: _global,
    ast.Nonlocal: _nonlocal,
    ast.Match: _match,
    ast.Assert: _assert,
    ast.Raise: _raise,
    ast.Delete: _delete,
    ast.Break: lambda machine, node: BREAK,
    ast.Continue: lambda machine, node: CONTINUE,
}
