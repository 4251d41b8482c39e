"""Values that are kept for a log with the graph that made them, where the code around them shows that they have one."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from typing import TypeAlias

from fallline.flow.calls import chained_on, last_name, names_in
from fallline.flow.recording import turns_off, under_no_grad
from fallline.syntax import Module
from fallline.syntax.nodes import below, is_name, methods_of, walk
from fallline.syntax.once import once

__all__ = [
    "appended_in_training_step",
    "carried_over",
    "not_detached_like_the_others",
]

_SAME_GRAPH = frozenset("cpu mean sum float clone to max min std squeeze view reshape".split())
_LIKE_THE_OTHERS = 3  # values of one dict that are detached, so that one that is not was forgotten


def not_detached_like_the_others(module: Module) -> Iterator[ast.expr]:
    """`stats["nll"] = nll_loss.mean()` among entries that are all `.detach()`ed, in a function that computes the loss."""
    for function in module.all(ast.FunctionDef) if "detach()" in module.source.text else ():
        if "detach()" not in module.segment(function) or turns_off(function):
            continue
        for holder, entries in _dicts(function):
            if _for_the_caller(module, function, holder):
                continue
            detached = [v for v in entries if _detached(v)]
            for value in entries:
                name = _plain_name(value)
                if name is None or _detached(value) or len(detached) < _LIKE_THE_OTHERS:
                    continue
                if _has_graph(function, name) and not under_no_grad(module, value):
                    yield value


Holder: TypeAlias = str | ast.Dict | ast.Call


def _dicts(function: ast.FunctionDef) -> list[tuple[Holder, list[ast.expr]]]:
    """The dicts of a function, by name or as they are written, and the values that go in: by display, by `dict(...)` or by key."""
    by_name: dict[str, list[ast.expr]] = {}
    found: list[tuple[Holder, list[ast.expr]]] = []
    for node in walk(function):
        match node:
            case ast.Assign(
                [ast.Subscript(ast.Name(name), ast.Constant(str()) | ast.JoinedStr())], value
            ):
                by_name.setdefault(name, []).append(value)
            case ast.Dict(values=values):
                found.append((node, values))
            case ast.Call(ast.Name("dict"), [], keywords):
                found.append((node, [k.value for k in keywords]))
    return [*found, *by_name.items()]


def _for_the_caller(module: Module, function: ast.FunctionDef, holder: Holder) -> bool:
    """The dict is all that the function gives: a training step's result, whose loss the caller walks, and no log beside it."""
    nodes = list(walk(function))
    if any(isinstance(n, ast.Call) and "backward" in last_name(n) for n in nodes):
        return False
    name = holder
    if not isinstance(holder, str):
        match module.parent(holder):
            case ast.Assign([ast.Name(called)]) | ast.AnnAssign(ast.Name(called)):
                name = called
            case ast.Call(ast.Attribute(ast.Name(called), "update")):
                name = called
    given = {a.arg for a in below(function.args, ast.arg)}
    results = [n.value for n in nodes if isinstance(n, ast.Return) and n.value is not None]
    if not results:
        return name in given
    return all(r is holder or (isinstance(r, ast.Name) and r.id == name) for r in results)


def _detached(value: ast.expr) -> bool:
    return any(last_name(n) in {"detach", "item", "tolist"} for n in below(value, ast.Call))


def _plain_name(value: ast.expr) -> str | None:
    """`x` in `x.cpu().mean()`."""
    begins = chained_on(value, _SAME_GRAPH)
    return begins.id if isinstance(begins, ast.Name) else None


def _has_graph(function: ast.FunctionDef, name: str) -> bool:
    """It is computed here, and the loss is computed from it, or it is a loss itself."""
    made = _definitions(function, name)
    if not made or any(_cuts(value) for value in made):
        return False
    if _WEIGHT.search(name):
        return False
    return "loss" in name.lower() or _reaches_loss(function, name)


# `kl_loss_weight`: the number that a loss is weighted by, not a loss
_WEIGHT = re.compile(r"weight|coef|scale|factor|lambda", re.IGNORECASE)


def _definitions(function: ast.FunctionDef, name: str) -> list[ast.expr]:
    return [
        s.value
        for s in below(function, ast.Assign)
        if any(name in names_in(t) for t in s.targets if not isinstance(t, ast.Subscript))
    ]


def _cuts(value: ast.expr) -> bool:
    """What is compared, counted or detached has no graph."""
    return (
        _detached(value)
        or any(
            isinstance(n, ast.Compare)
            or (isinstance(n, ast.Call) and last_name(n) in {"len", "float", "int", "argmax"})
            for n in ast.walk(value)
        )
        or isinstance(value, ast.Constant)
    )


def _reaches_loss(function: ast.FunctionDef, name: str, depth: int = 3) -> bool:
    for statement in walk(function):
        match statement:
            case ast.Assign([ast.Name(target)], value) if (
                name in names_in(value) and target != name
            ):
                if isinstance(value, ast.BinOp | ast.Call | ast.UnaryOp) and not _cuts(value):
                    if "loss" in target.lower() or (
                        depth and _reaches_loss(function, target, depth - 1)
                    ):
                        return True
    return False


def appended_in_training_step(module: Module) -> Iterator[ast.Call]:
    """`self.outputs.append(loss)` in Lightning's `training_step`, which returns the same loss for the backward."""
    for cls in module.all(ast.ClassDef):
        steps = [m for m in methods_of(cls) if m.name == "training_step"]
        if not steps or not any(b.endswith("LightningModule") for b in module.bases(cls)):
            continue
        for method in steps:
            returned = {
                r.value.id for r in below(method, ast.Return) if isinstance(r.value, ast.Name)
            }
            for node in walk(method):
                match node:
                    case ast.Call(
                        ast.Attribute(ast.Attribute(ast.Name("self")), "append"), [ast.Name(kept)]
                    ) if kept in returned:
                        yield node


# What is carried from one call to the next on purpose: the state of a recurrent network, a memory, a cache.
_STATE = re.compile(
    r"hidden|state|mem|cache|(^|_)[hc]x?$|kv|past|buffer|queue|loss|penalty|history", re.IGNORECASE
)
_NO_GRAPH = re.compile(
    r"detach|\.data\b|\.item\(|no_grad|argmax|\.long\(|\.int\(|bincount|one_hot|\bint\(|\bfloat\(|==|[<>]|\.size\(|\.shape|len\(|numel|numpy|\.device|\.dtype"
)


def carried_over(module: Module) -> Iterator[ast.Assign]:
    """`self.running = 0.9 * self.running + 0.1 * x.mean()` in a module's forward: each call adds its graph to all those before."""
    forwards = [f for f in module.all(ast.FunctionDef) if f.name == "forward"]
    for forward, node in ((f, n) for f in forwards for n in below(f, ast.Assign)):
        match node:
            case ast.Assign(
                [ast.Attribute(ast.Name("self"), name)], ast.BinOp() | ast.Call() | ast.IfExp()
            ) if not _STATE.search(name):
                method, cls = _method_around(module, node)
                if method is not forward or cls is None:
                    continue
                if not _is_carried(module, method, node, name) or turns_off(method):
                    continue
                known = module.is_module_class(cls) or cls in _call_forward_above(module)
                if known and name not in _set_by_others(cls):
                    yield node


def _method_around(
    module: Module, node: ast.AST
) -> tuple[ast.FunctionDef | None, ast.ClassDef | None]:
    """The method that this is written in, also inside a function of it."""
    for up in module.parents(node):
        match up, module.parent(up):
            case ast.FunctionDef(), ast.ClassDef() as cls:
                return up, cls
    return None, None


def _set_by_others(cls: ast.ClassDef) -> set[str]:
    """Attributes that a method beside the constructor and forward sets: `clear_buffer` empties what one sequence has filled."""
    return {
        n.attr
        for method in methods_of(cls)
        if method.name not in {"__init__", "forward"}
        for n in below(method, ast.Attribute)
        if isinstance(n.ctx, ast.Store)
    }


@once
def _call_forward_above(module: Module) -> set[ast.AST]:
    """The classes that write `super().forward(...)`: modules too, whose class is made elsewhere."""
    return {
        up
        for n in module.all(ast.Attribute)
        if n.attr == "forward" and last_name(n.value) == "super" and not is_name(n.value, "super")
        for up in module.parents(n)
    }


def _is_carried(module: Module, method: ast.FunctionDef, node: ast.Assign, name: str) -> bool:
    text = module.segment(node.value)
    if f"self.{name}" not in text or _NO_GRAPH.search(text):
        return False
    if not _continues(node.value, name) or under_no_grad(module, node):
        return False
    return _computed(module, node, {a.arg for a in method.args.args[1:]})


_JOINS = frozenset("max min maximum minimum cat stack add lerp".split())


def _continues(value: ast.expr, name: str) -> bool:
    """A sum, or the larger of two, of which `self.name` is one: not only moved to a device or given another shape."""
    match value:
        case ast.IfExp(body=body, orelse=orelse):
            return _continues(body, name) or _continues(orelse, name)
        case ast.BinOp(left, ast.Add() | ast.Sub(), right):
            parts = [*ast.walk(left), *ast.walk(right)]
        case ast.Call(args=args) if last_name(value) in _JOINS:
            parts = [n for a in [value.func, *args] for n in ast.walk(a)]
        case _:
            return False
    return any(
        isinstance(n, ast.Attribute) and n.attr == name and is_name(n.value, "self") for n in parts
    )


def _computed(module: Module, node: ast.Assign, given: set[str]) -> bool:
    """Something in it is computed from what forward was given: `x.mean()`, or a name that stands for it."""
    names = names_in(node.value) - {"self"}
    if any(names_in(n) & given & names for n in below(node.value, ast.Call)):
        return True
    return bool(names & (_derived(module, node, given) - given))


def _derived(module: Module, node: ast.Assign, given: set[str]) -> set[str]:
    """The names that stand for something computed from what forward was given, with its graph."""
    function = module.function(node)
    statements = [n for n in below(function, ast.Assign)] if function else []
    cut = {
        name
        for s in statements
        if _NO_GRAPH.search(module.segment(s.value))
        for name in names_in(*s.targets)
    }
    found = set(given)
    for _ in range(3):
        for statement in statements:
            value = statement.value
            if (
                not isinstance(value, ast.Call | ast.Name | ast.BinOp)
                or not names_in(value) & found
            ):
                continue
            if not _NO_GRAPH.search(module.segment(value)):
                found |= names_in(*statement.targets)
    return found - cut - {"self"}
