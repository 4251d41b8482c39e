"""Statements, carried out one by one. Loops are in loops.py, tests in decide.py."""

from __future__ import annotations

import ast
from collections.abc import Callable
from collections.abc import Sequence as Seq
from typing import Any

from fallline.events import Kind
from fallline.reader import contexts, grads, loops
from fallline.reader.decide import decide, truth
from fallline.reader.evaluate import combine, evaluate
from fallline.reader.machine import Machine
from fallline.reader.values import (
    NONE,
    Class,
    Const,
    Function,
    Mapping,
    Param,
    Sequence,
    Tensor,
    Thing,
    Unknown,
    Value,
    replace,
)

__all__ = ["assign_to", "run_block"]

BREAK, CONTINUE, RETURN = "break", "continue", "return"


def run_block(machine: Machine, statements: Seq[ast.stmt]) -> str | None:
    """Run statements until one of them jumps; the kind of jump, or None."""
    for statement in statements:
        machine.tick()
        handler = _HANDLERS.get(statement.__class__)
        if handler is not None:
            jump = handler(machine, statement)
            if jump is not None:
                return jump
    return None


def _expression(machine: Machine, node: ast.Expr) -> None:
    if not isinstance(node.value, ast.Constant):
        evaluate(machine, node.value)


def _assign(machine: Machine, node: ast.Assign) -> None:
    grows = _adds_to_itself(node)
    before = machine.settled(evaluate(machine, node.targets[0])) if grows else None
    value = evaluate(machine, node.value)
    if grows and isinstance(value, Tensor) and value.graph:
        added = value
        if isinstance(before, Tensor):
            added = replace(
                value, forwards=value.forwards - before.forwards, kept=value.kept - before.kept
            )
        value = grads.accumulate(machine, node, added, value)
    for target in node.targets:
        assign_to(machine, target, value, node)


def _adds_to_itself(node: ast.Assign) -> bool:
    """`total = total + loss`, and a running average: `self.avg = 0.9 * self.avg + 0.1 * loss`."""
    target, added = node.targets[0], node.value
    if not (isinstance(added, ast.BinOp) and isinstance(added.op, ast.Add)):
        return False
    if not isinstance(target, ast.Name | ast.Attribute):
        return False
    for side in (added.left, added.right):
        scaled = isinstance(side, ast.BinOp) and isinstance(side.op, ast.Mult)
        parts = (side.left, side.right) if isinstance(side, ast.BinOp) and scaled else (side,)
        if any(_same_name(target, part) for part in parts):
            return True
    return False


def _same_name(one: ast.expr, other: ast.expr) -> bool:
    """The same name, or the same attribute of the same name."""
    while isinstance(one, ast.Attribute) and isinstance(other, ast.Attribute):
        if one.attr != other.attr:
            return False
        one, other = one.value, other.value
    return isinstance(one, ast.Name) and isinstance(other, ast.Name) and one.id == other.id


def _annotated(machine: Machine, node: ast.AnnAssign) -> None:
    if node.value is not None:
        assign_to(machine, node.target, evaluate(machine, node.value), node)


def assign_to(machine: Machine, target: ast.expr, value: Value, node: ast.AST) -> None:
    """Bind a value to a name, attribute, item, or a pattern of them."""
    if isinstance(target, ast.Name):
        _replaced(machine, target.id, value, node)
        machine.assign(target.id, value)
    elif isinstance(target, ast.Attribute):
        _set_attribute(machine, target, value, node)
    elif isinstance(target, ast.Tuple | ast.List):
        for part, item in zip(target.elts, _unpacked(machine, value, target.elts), strict=True):
            assign_to(machine, part.value if isinstance(part, ast.Starred) else part, item, node)
    elif isinstance(target, ast.Subscript):
        _set_item(machine, target, value, node)


def _unpacked(machine: Machine, found: Value, parts: list[ast.expr]) -> list[Value]:
    value = machine.settled(found)
    if (
        isinstance(value, Sequence)
        and len(value.items) == len(parts)
        and not any(isinstance(p, ast.Starred) for p in parts)
    ):
        return value.items
    if isinstance(value, Tensor):
        # a model's outputs, or a batch: each part is such a tensor, or a number
        return [replace(value, graph=None if value.graph else value.graph) for _ in parts]
    if isinstance(value, Sequence) and len(value.items) == 1 and isinstance(value.items[0], Tensor):
        return [replace(value.items[0]) for _ in parts]
    return [Unknown(_name(p)) for p in parts]


def _name(node: ast.expr) -> str:
    return (
        node.id
        if isinstance(node, ast.Name)
        else node.attr
        if isinstance(node, ast.Attribute)
        else ""
    )


def _replaced(machine: Machine, name: str, value: Value, node: ast.AST) -> None:
    """`model = Net()` again, when an optimizer already holds the old parameters."""
    new = machine.settled(value)
    if not isinstance(new, Thing) or new.kind != "model":
        return
    old = machine.frame.names.get(name)
    if (
        isinstance(old, Thing)
        and old.kind == "model"
        and new.sets
        and old.sets
        and new.sets.isdisjoint(old.sets)
    ):
        held = any(
            t.kind == "optimizer" and not t.sets.isdisjoint(old.sets)
            for t in machine.things.values()
        )
        here = machine.place(node)
        made_here = (
            isinstance(node, ast.Assign)
            and new.at is not None
            and here.line <= new.at.line <= (here.end_line or 0)
        )
        if held and not machine.iteration and made_here:
            machine.emit(Kind.REPLACE, node, model=new, what="recreated", parameters=old.sets)


def _set_attribute(machine: Machine, target: ast.Attribute, value: Value, node: ast.AST) -> None:
    of = machine.settled(evaluate(machine, target.value))
    if isinstance(of, Param) and target.attr == "grad":
        grads.assign(machine, of.sets, value, node)
        return
    if isinstance(of, Param) and target.attr == "data":
        grads.used(machine, value, of.sets, node)
        return
    if isinstance(of, Tensor) and target.attr == "requires_grad":
        of.leaf = of.graph = True
        return
    if isinstance(of, Tensor) and target.attr == "grad":
        grads.assign(machine, of.sets, value, node)
        return
    if isinstance(of, Unknown) and target.attr == "grad":
        grads.assign(machine, frozenset(), value, node)
        return
    if isinstance(of, Thing):
        new = machine.settled(value)
        if target.attr == "require_backward_grad_sync" and of.kind == "model":
            _toggle_sync(machine, of, value, target)
            return
        if (
            of.kind == "model"
            and isinstance(new, Thing)
            and new.kind == "model"
            and target.attr != "module"
        ):
            _new_part(machine, of, new, target.attr, node)
        of.attrs[target.attr] = value
        if isinstance(value, Unknown) and value.became is None and not value.hint:
            value.hint = target.attr


def _toggle_sync(machine: Machine, model: Thing, value: Value, target: ast.Attribute) -> None:
    model.facts["wrapper"] = model.facts.get("wrapper", "ddp")
    synced = (
        bool(value.value)
        if isinstance(value, Const)
        else machine.settings.switch(machine.text(target), True, 0)
    )
    if synced:
        machine.unsynced = [m for m in machine.unsynced if m != model.id]
    elif model.id not in machine.unsynced:
        machine.unsynced.append(model.id)


def _new_part(machine: Machine, model: Thing, part: Thing, name: str, node: ast.AST) -> None:
    """`model.fc = nn.Linear(...)`: part of the model; too late when an optimizer already holds the old ones."""
    me = machine.frame.me
    for layer in ("batchnorm", "recurrent", "dropout", "transformer"):
        if part.facts.get(layer):
            model.facts[layer] = True
    if me is model:
        part.facts["parameters"] = model.sets
        return
    holders = [
        t
        for t in machine.things.values()
        if t.kind == "optimizer" and not t.sets.isdisjoint(model.sets)
    ]
    if holders and not part.sets <= model.sets and not machine.iteration:
        machine.emit(
            Kind.REPLACE,
            node,
            model=model,
            optimizer=holders[0],
            what="head",
            parameters=model.sets,
        )
    part.facts["parameters"] = model.sets


def _set_item(machine: Machine, target: ast.Subscript, value: Value, node: ast.AST) -> None:
    of = machine.settled(evaluate(machine, target.value))
    if isinstance(of, Mapping):
        key = evaluate(machine, target.slice)
        if isinstance(key, Const):
            try:
                of.items[key.value] = value
            except TypeError:
                return
        if isinstance(value, Tensor):
            grads.keep(machine, of, value, "assign", node)
    elif isinstance(of, Thing) and of.kind == "model":
        new = machine.settled(value)
        if isinstance(new, Thing) and new.kind == "model":
            _new_part(machine, of, new, machine.text(target.slice), node)
    elif isinstance(of, Sequence) and isinstance(value, Tensor):
        grads.keep(machine, of, value, "assign", node)


def _augmented(machine: Machine, node: ast.AugAssign) -> None:
    old = machine.settled(evaluate(machine, node.target))
    value = evaluate(machine, node.value)
    if isinstance(old, Tensor) and old.grad_of is not None:
        grads.write(machine, old.grad_of, _operation(node.op), node)
        return
    if isinstance(old, Param):
        grads.used(machine, value, old.sets, node)
        return
    new = combine(machine, old, value, node.op, node)
    if isinstance(old, Sequence) and isinstance(value, Sequence):
        old.items += value.items
        return
    if isinstance(new, Const) and machine.iteration:
        new = Const(new.value, True)
    if (
        isinstance(new, Tensor)
        and new.graph
        and isinstance(node.op, ast.Add)
        and isinstance(value, Tensor)
    ):
        new = grads.accumulate(machine, node, value, new)
    assign_to(machine, node.target, new, node)


def _operation(op: ast.operator) -> str:
    return {
        ast.Div: "div",
        ast.Mult: "mul",
        ast.Add: "add",
        ast.Sub: "add",
        ast.FloorDiv: "div",
    }.get(op.__class__, "other")


def _if(machine: Machine, node: ast.If) -> str | None:
    value, varying = decide(machine, node)
    body = node.body if value else node.orelse
    if varying and not value and isinstance(node.body[-1], ast.Continue):
        machine.passed.append(
            machine.place(node.test)
        )  # what follows is reached only past this test
    if not body:
        return None
    machine.tests.append((machine.place(node.test), varying, machine.text(node.test)))
    try:
        return run_block(machine, body)
    finally:
        machine.tests.pop()


def _with(machine: Machine, node: ast.With | ast.AsyncWith) -> str | None:
    with contexts.entered_all(machine, node):
        return run_block(machine, node.body)


def _try(machine: Machine, node: ast.Try) -> str | None:
    jump = run_block(machine, node.body)
    if jump is None:
        jump = run_block(machine, node.orelse)
    return run_block(machine, node.finalbody) or jump


def _return(machine: Machine, node: ast.Return) -> str:
    machine.returned = evaluate(machine, node.value) if node.value is not None else NONE
    return RETURN


def _function(machine: Machine, node: ast.FunctionDef | ast.AsyncFunctionDef) -> None:
    machine.assign(node.name, Function(node, machine.module, machine.frame))


def _class(machine: Machine, node: ast.ClassDef) -> None:
    machine.assign(node.name, Class(node, machine.module))


def _import(machine: Machine, node: ast.Import | ast.ImportFrom) -> None:
    from fallline.reader.globals import imported

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
    evaluate(machine, node.subject)
    for index, case in enumerate(node.cases):
        last = index == len(node.cases) - 1
        key = f"{machine.text(node.subject)} matches case {index + 1}"
        if last or machine.settings.switch(key, index == 0):
            return run_block(machine, case.body)
    return None


def _assert(machine: Machine, node: ast.Assert) -> None:
    truth(machine, node.test, True, 0)


def _raise(machine: Machine, node: ast.Raise) -> str:
    machine.returned = Unknown()
    return RETURN


def _delete(machine: Machine, node: ast.Delete) -> None:
    for target in node.targets:
        if isinstance(target, ast.Name):
            machine.frame.names.pop(target.id, None)
        elif isinstance(target, ast.Subscript) and isinstance(target.slice, ast.Slice):
            emptied = machine.settled(evaluate(machine, target.value))
            if isinstance(emptied, Sequence):
                emptied.items.clear()


_HANDLERS: dict[type, Callable[[Machine, Any], str | None]] = {
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
