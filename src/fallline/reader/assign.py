"""Assignments: to names, attributes, items, and patterns of them."""

from __future__ import annotations

import ast

from fallline.api import gradients
from fallline.api.values import (
    Const,
    Mapping,
    Param,
    Sequence,
    Tensor,
    Thing,
    Unknown,
    Value,
    replace,
)
from fallline.events import Replace
from fallline.reader.machine import Machine

__all__ = ["assign_to"]


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
        if held and not machine.loops.iteration and made_here:
            machine.emit(Replace(here, model=new.id, what="recreated", parameters=old.sets))


def _set_attribute(machine: Machine, target: ast.Attribute, value: Value, node: ast.AST) -> None:
    of = machine.settled(machine.evaluate(target.value))
    if isinstance(of, Param) and target.attr == "grad":
        gradients.assign(machine, of.sets, value, node)
        return
    if isinstance(of, Param) and target.attr == "data":
        gradients.used(machine, of.sets, node)
        return
    if isinstance(of, Tensor) and target.attr == "requires_grad":
        of.leaf = of.graph = True
        return
    if isinstance(of, Tensor) and target.attr == "grad":
        gradients.assign(machine, of.sets, value, node)
        return
    if isinstance(of, Unknown) and target.attr == "grad":
        gradients.assign(machine, frozenset(), value, node)
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
            _new_part(machine, of, new, node)
        of.attrs[target.attr] = value
        if isinstance(value, Unknown) and value.became is None and not value.hint:
            value.hint = target.attr


def _toggle_sync(machine: Machine, model: Thing, value: Value, target: ast.Attribute) -> None:
    model.facts["wrapper"] = model.facts.get("wrapper", "ddp")
    synced = (
        bool(value.value)
        if isinstance(value, Const)
        else machine.switch(machine.text(target), True, 0)
    )
    if synced:
        machine.around.unsynced = [m for m in machine.around.unsynced if m != model.id]
    elif model.id not in machine.around.unsynced:
        machine.around.unsynced.append(model.id)


def _new_part(machine: Machine, model: Thing, part: Thing, node: ast.AST) -> None:
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
    if holders and not part.sets <= model.sets and not machine.loops.iteration:
        machine.emit(
            Replace(
                machine.place(node),
                model=model.id,
                optimizer=holders[0].id,
                what="head",
                parameters=model.sets,
            )
        )
    part.facts["parameters"] = model.sets


def _set_item(machine: Machine, target: ast.Subscript, value: Value, node: ast.AST) -> None:
    of = machine.settled(machine.evaluate(target.value))
    if isinstance(of, Mapping):
        key = machine.evaluate(target.slice)
        if isinstance(key, Const):
            try:
                of.items[key.value] = value
            except TypeError:
                return
        if isinstance(value, Tensor):
            gradients.keep(machine, of, value, "assign", node)
    elif isinstance(of, Thing) and of.kind == "model":
        new = machine.settled(value)
        if isinstance(new, Thing) and new.kind == "model":
            _new_part(machine, of, new, node)
    elif isinstance(of, Sequence) and isinstance(value, Tensor):
        gradients.keep(machine, of, value, "assign", node)
