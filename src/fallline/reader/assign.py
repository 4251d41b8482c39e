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
    of_kind,
    replace,
    truth_of,
)
from fallline.events import Replace
from fallline.reader.machine import Machine

__all__ = ["assign_to"]


def assign_to(machine: Machine, target: ast.expr, value: Value, node: ast.AST) -> None:
    """Bind a value to a name, attribute, item, or a pattern of them."""
    match target:
        case ast.Name(id=name):
            _replaced(machine, name, value, node)
            machine.assign(name, value)
        case ast.Attribute():
            _set_attribute(machine, target, value, node)
        case ast.Tuple(elts=parts) | ast.List(elts=parts):
            for part, item in zip(parts, _unpacked(machine, value, parts), strict=True):
                assign_to(machine, part, item, node)
        case ast.Starred(value=inner):
            assign_to(machine, inner, value, node)
        case ast.Subscript():
            _set_item(machine, target, value, node)


def _unpacked(machine: Machine, found: Value, parts: list[ast.expr]) -> list[Value]:
    starred = any(isinstance(p, ast.Starred) for p in parts)
    match machine.settled(found):
        case Sequence(items=items) if len(items) == len(parts) and not starred:
            return items
        case Tensor(graph=graph) as value:
            # a model's outputs, or a batch: each part is such a tensor, or a number
            return [replace(value, graph=None if graph else graph) for _ in parts]
        case Sequence(items=[Tensor() as value]):
            return [replace(value) for _ in parts]
    return [Unknown(_name(p)) for p in parts]


def _name(node: ast.expr) -> str:
    match node:
        case ast.Name(id=name) | ast.Attribute(attr=name):
            return name
    return ""


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
        again = (
            machine.frame.fresh.get(name, 0) != machine.loops.iteration
        )  # of the next fold or task
        if held and not again and made_here:
            machine.emit(Replace(here, model=new.id, what="recreated", parameters=old.sets))


def _set_attribute(machine: Machine, target: ast.Attribute, value: Value, node: ast.AST) -> None:
    of = machine.settled(machine.evaluate(target.value))
    match of, target.attr:
        case ((Param() | Tensor()), "grad"):
            gradients.assign(machine, of.sets, value, node)
        case Unknown(), "grad":
            gradients.assign(machine, frozenset(), value, node)
        case Param(), "data":
            gradients.used(machine, of.sets, node)
        case Param(sets), "requires_grad":
            _freeze(machine, sets, value, node)
        case Tensor(), "requires_grad":
            of.leaf = of.graph = True
        case Thing(kind="model"), "require_backward_grad_sync":
            _toggle_sync(machine, of, value, target)
        case Thing(), name:
            _keep_attribute(machine, of, name, value, node)


def _freeze(machine: Machine, sets: frozenset[str], value: Value, node: ast.AST) -> None:
    """`for p in model.parameters(): p.requires_grad = False`; where a test picks some of them, the others still learn."""
    for up in machine.module.parents(node):
        if isinstance(up, ast.For | ast.While):
            break
        if isinstance(up, ast.If):
            return
    for thing in machine.things.values():
        if thing.kind == "model" and thing.sets and thing.sets <= sets:
            thing.facts["frozen"] = truth_of(value) is False


def _keep_attribute(machine: Machine, of: Thing, name: str, value: Value, node: ast.AST) -> None:
    match of, machine.settled(value):
        case Thing(kind="model"), Thing(kind="model") as part if name != "module":
            _new_part(machine, of, part, node)
    gradients.taken(machine, machine.settled(value), node)
    of.attrs[name] = value
    machine.name_tensor(value)
    if isinstance(value, Unknown) and value.became is None and not value.hint:
        value.hint = name


def _toggle_sync(machine: Machine, model: Thing, value: Value, target: ast.Attribute) -> None:
    model.facts["wrapper"] = model.facts.get("wrapper", "ddp")
    synced = truth_of(value)
    if synced is None:
        synced = machine.switch(machine.text(target), True, 0)
    if synced:
        machine.around.unsynced = [m for m in machine.around.unsynced if m != model.id]
    elif model.id not in machine.around.unsynced:
        machine.around.unsynced.append(model.id)


def _new_part(machine: Machine, model: Thing, part: Thing, node: ast.AST) -> None:
    """`model.fc = nn.Linear(...)`: part of the model; too late when an optimizer already holds the old ones."""
    me = machine.frame.me
    if part.facts.get("batchnorm"):
        model.facts["batchnorm"] = True
    if me is model:
        _take_in(model, part)
        return
    holders = [
        t
        for t in machine.things.values()
        if t.kind == "optimizer" and not t.sets.isdisjoint(model.sets)
    ]
    late = holders and not part.sets <= model.sets and not machine.loops.iteration
    if late and not _was_missing(machine, node):
        machine.emit(
            Replace(
                machine.place(node),
                model=model.id,
                optimizer=holders[0].id,
                what="head",
                parameters=model.sets,
            )
        )
    _take_in(model, part)
    model.facts["frozen"] = False  # the new part learns


def _take_in(model: Thing, part: Thing) -> None:
    """The parameters of a part are the model's; one that was there before stays what others hold: an optimizer, a second model."""
    given: frozenset[str] = model.facts.get("given", frozenset())
    known = bool(part.sets) and not any(name.startswith("?") for name in part.sets | model.sets)
    if known and part.number < model.number:
        model.facts["given"] = given | (part.sets - model.sets)
        model.facts["parameters"] = model.sets | part.sets
    else:
        part.facts["parameters"] = model.sets - given


def _was_missing(machine: Machine, node: ast.AST) -> bool:
    """`if "embedder" not in models: models["embedder"] = Identity()`: nothing is replaced."""
    above = (up for up in machine.module.parents(node) if isinstance(up, ast.If))
    return any(isinstance(n, ast.NotIn) for up in above for n in ast.walk(up.test))


def _set_item(machine: Machine, target: ast.Subscript, value: Value, node: ast.AST) -> None:
    of = machine.settled(machine.evaluate(target.value))
    machine.name_tensor(value)
    gradients.taken(machine, machine.settled(value), node)
    match of, value:
        case Mapping(), _:
            _set_key(machine, of, machine.evaluate(target.slice), value, node)
        case Thing("model"), _:
            for part in of_kind([machine.settled(value)], "model"):
                _new_part(machine, of, part, node)
        case Sequence(), Tensor():
            kept = gradients.keep(machine, of, value, "assign", node)
            _put(of, machine.evaluate(target.slice), kept)
        case Tensor(), Tensor():
            gradients.into(machine, of, value, "append", node)


def _put(of: Sequence, place: Value, value: Tensor) -> None:
    """`losses[i] = loss`: where the place is not known, each of them may be the one that is read later."""
    match place:
        case Const(int(index), False) if -len(of.items) <= index < len(of.items):
            of.items[index] = value
        case _:
            of.items = [
                replace(
                    value,
                    sets=value.sets | item.sets,
                    forwards=value.forwards | item.forwards,
                    kept=value.kept | item.kept,
                )
                if isinstance(item, Tensor)
                else value
                for item in of.items
            ]


def _set_key(machine: Machine, of: Mapping, key: Value, value: Value, node: ast.AST) -> None:
    grows = False  # under another key each time nothing is overwritten
    if isinstance(key, Const):
        grows = key.varying
        try:
            of.items[key.value] = value
        except TypeError:
            return
    if isinstance(value, Tensor):
        gradients.keep(machine, of, value, "append" if grows else "assign", node)
