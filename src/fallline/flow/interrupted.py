"""Loops that train and stop now and then for something else: an evaluation, the end of the data."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from typing import TypeAlias

from fallline.flow.calls import last_name
from fallline.flow.makers import called_function
from fallline.flow.ranks import called_functions
from fallline.syntax import Module
from fallline.syntax.nodes import below, is_name, methods_of, walk, written

Def: TypeAlias = ast.FunctionDef | ast.AsyncFunctionDef

__all__ = ["evaluations_left_on", "left_on_by_a_method", "never_updated", "steps_without_update"]


def evaluations_left_on(module: Module) -> Iterator[tuple[Module, ast.Call, ast.Call]]:
    """(file, `model.eval()`, the call that leads to it): called under a test in a loop that trains, and no `train()` in that loop."""
    for start in module.method_calls("train"):
        match start:
            case ast.Call(
                ast.Attribute(ast.Name() | ast.Attribute(ast.Name("self")) as trained), []
            ):
                model = written(trained)
            case _:
                continue
        for loop in (
            n for n in module.all(ast.For, ast.While) if module.scope(n) is module.scope(start)
        ):
            if loop.lineno < start.lineno or not _trains(loop, model) or _sets_mode(loop, model):
                continue
            for call in (c for c in below(loop, ast.Call)):
                place = _given(call, model)
                own = place is None and model.startswith("self.") and _is_own(call)
                if (place is None and not own) or not _now_and_then(module, call, loop):
                    continue
                for home, function in _run_by(module, call):
                    named = _parameter(function, call, place) if place is not None else model
                    resting = _rests(function, named)
                    if resting is not None:
                        yield home, resting, call


def _is_own(call: ast.Call) -> bool:
    """`self.validate()`: the method has what the loop has."""
    return isinstance(call.func, ast.Attribute) and is_name(call.func.value, "self")


_BEFORE = re.compile(r"^(__init__|_?(init|set_?up|build|prepare|load|configure|create|make)\w*)$")
_EVALUATES = re.compile(r"test|eval|valid|predict|infer|sampl|generat|visuali[sz]|snapshot", re.I)


def left_on_by_a_method(module: Module) -> Iterator[tuple[ast.Call, str]]:
    """`self.net.eval()` in a method that evaluates, in a class that trains `self.net` and sets train mode only when it is set up."""
    for cls in module.all(ast.ClassDef):
        methods = methods_of(cls)
        for method in (m for m in methods if _EVALUATES.search(m.name)):
            for part, rests in _resting(method):
                if not _is_trained(methods, part) or _restored(module, cls, methods, part):
                    continue
                # whoever holds a module may call its train(); not where nobody who has it does
                if module.is_module_class(cls) and _is_set_elsewhere(module, cls):
                    continue
                yield rests, part


def _is_set_elsewhere(module: Module, cls: ast.ClassDef) -> bool:
    others = module.project.beside(module, cls.name.encode()) if module.project else []
    return any(".train(" in home.source.text for home in (module, *others))


def _resting(method: ast.FunctionDef) -> Iterator[tuple[str, ast.Call]]:
    """The parts that a method puts into eval mode, and runs there."""
    for call in below(method, ast.Call):
        match call:
            case ast.Call(ast.Attribute(ast.Attribute(ast.Name("self"), part), "eval"), []):
                if _runs(method, part):
                    yield part, call


def _runs(method: ast.AST, part: str) -> bool:
    """`self.net(x)`, `self.net.sample(x)`."""
    for call in below(method, ast.Call):
        match call.func:
            case ast.Attribute(ast.Name("self"), name) if name == part:
                return True
            case ast.Attribute(ast.Attribute(ast.Name("self"), name), done) if name == part:
                if done not in {"eval", "train", "to", "state_dict", "parameters"}:
                    return True
    return False


def _is_trained(methods: list[ast.FunctionDef], part: str) -> bool:
    """Some method runs it and walks back."""
    return any(
        _runs(m, part) and any(last_name(c) == "backward" for c in below(m, ast.Call))
        for m in methods
    )


def _restored(module: Module, cls: ast.ClassDef, methods: list[ast.FunctionDef], part: str) -> bool:
    """Train mode is set again: for this part after the setting up, or in a way that does not say for which."""
    for node in below(cls, ast.Attribute):
        if node.attr not in {"train", "training"}:
            continue
        match node.value:
            case ast.Attribute(ast.Name("self"), name) if name != part:
                continue
            case ast.Attribute(ast.Name("self")):
                home = module.function(node)
                if home is None or not _BEFORE.match(home.name):
                    return True
            case _:
                return True
    others = {d.attr for d in module.all(ast.Attribute) if d.attr in {"train_mode", "set_mode"}}
    return bool(others) or not methods


def _run_by(module: Module, call: ast.Call) -> list[tuple[Module, Def]]:
    method = called_function(module, call)
    return [method] if method is not None else called_functions(module, call)


def _trains(loop: ast.AST, model: str) -> bool:
    """A backward or a step in it, or a call that is given the model and the optimizer."""
    for node in walk(loop):
        match node:
            case ast.Call(ast.Attribute(attr="backward")):
                return True
            case ast.Call(args=given):
                names = {written(a) for a in given if isinstance(a, ast.Name | ast.Attribute)}
                if model in names and any("optim" in name for name in names):
                    return True
    return False


def _sets_mode(loop: ast.AST, model: str) -> bool:
    return any(
        n.attr == "train" and written(n.value) in {model, "self"}
        for n in below(loop, ast.Attribute)
    )


def _given(call: ast.Call, model: str) -> int | str | None:
    """Where a call is given the model: its place, or its keyword."""
    for place, value in enumerate(call.args):
        if isinstance(value, ast.Name | ast.Attribute) and written(value) == model:
            return place
    for keyword in call.keywords:
        if isinstance(keyword.value, ast.Name | ast.Attribute) and written(keyword.value) == model:
            return keyword.arg
    return None


def _parameter(function: Def, call: ast.Call, place: int | str) -> str | None:
    if isinstance(place, str):
        return place
    names = [a.arg for a in function.args.args]
    if isinstance(call.func, ast.Attribute) and names[:1] == ["self"]:
        names = names[1:]
    return names[place] if place < len(names) else None


def _now_and_then(module: Module, call: ast.Call, loop: ast.AST) -> bool:
    """Under a test inside the loop, and the loop continues after it."""
    for up in module.parents(call):
        if up is loop:
            return False
        if isinstance(up, ast.If):
            inside = [n for s in (*up.body, *up.orelse) for n in walk(s)]
            return not any(isinstance(n, ast.Break | ast.Return) for n in inside)
    return False


def _rests(function: ast.AST, model: str | None) -> ast.Call | None:
    """`model.eval()` in a function that never calls `model.train(...)`."""
    found: ast.Call | None = None
    for node in walk(function):
        match node:
            case ast.Call(ast.Attribute(of, "eval"), []) if written(of) == model:
                found = node
            case ast.Attribute(of, "train" | "training") if written(of) in {model, "self"}:
                return None
    return found


def steps_without_update(module: Module) -> Iterator[ast.Call]:
    """`scaler.step(optimizer)` on a way out of a loop on which no `scaler.update()` comes, in a function that has one elsewhere."""
    for call in module.method_calls("step"):
        if (
            not isinstance(call.func, ast.Attribute)
            or "scaler" not in last_name(call.func.value)
            or not call.args
        ):
            continue
        scaler = module.segment(call.func.value)
        updates = [
            c for c in module.method_calls("update") if module.segment(c.func) == f"{scaler}.update"
        ]
        if any(module.function(u) is module.function(call) for u in updates):
            if _leaves_before(module, module.statement(call), updates):
                yield call


def never_updated(module: Module) -> Iterator[ast.Call]:
    """`scaler.step(optimizer)` of a scaler that scales here, in a project where its `update` is spelled nowhere: nobody who has it calls that."""
    if module.project is None:
        return
    for call in module.method_calls("step"):
        if not isinstance(call.func, ast.Attribute) or not call.args:
            continue
        scaler = last_name(call.func.value)
        if "scaler" not in scaler.lower():
            continue
        scales = any(
            isinstance(c.func, ast.Attribute) and last_name(c.func.value) == scaler
            for c in module.method_calls("scale")
        )
        words = {f"{scaler}.update", "scaler.update"}
        if scales and not any(module.project.spells(module, w.encode()) for w in words):
            yield call


def _leaves_before(module: Module, statement: ast.stmt, updates: list[ast.Call]) -> bool:
    """Whether a `break` or `return` comes next in this block, and no update on the way there or after the loop."""
    block = _block(module, statement)
    for later in block[block.index(statement) + 1 :]:
        if any(u in walk(later) for u in updates):
            return False
        if isinstance(later, ast.Break):
            loop = module.enclosing(later, ast.For, ast.While)
            return loop is not None and not any(u.lineno > (loop.end_lineno or 0) for u in updates)
        if isinstance(later, ast.Return):
            return True
    match module.parent(statement):
        case ast.If() | ast.With() as up:
            return _leaves_before(module, up, updates)
    return False


def _block(module: Module, statement: ast.stmt) -> list[ast.stmt]:
    """The statements that this one is among."""
    up = module.parent(statement)
    for field in ("body", "orelse", "finalbody"):
        block = getattr(up, field, None)
        if isinstance(block, list) and statement in block:
            return block
    return [statement]
