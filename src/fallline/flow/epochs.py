"""Which epoch a checkpoint names, and with which one a resumed run begins."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from fallline.flow.checkpoints import Saved, loads, saves
from fallline.syntax import Module
from fallline.syntax.nodes import below, is_name, written

__all__ = ["repeated_epochs"]


def repeated_epochs(module: Module) -> Iterator[ast.expr]:
    """`start = checkpoint["epoch"]` and `for epoch in range(start, n)`, where the end of epoch e saves `{"epoch": e}`."""
    finished = {key for saved in saves(module) for key in _finished(saved)}
    for loaded in loads(module) if finished else ():
        for key, node in loaded.restored().items():
            if key in finished and isinstance(node, ast.expr) and _begins_there(module, node):
                yield node


def _finished(saved: Saved) -> Iterator[str]:
    """Keys that hold the number of an epoch loop whose batches are all done."""
    module = saved.module
    for key, value in saved.entries.items():
        if not isinstance(value, ast.Name) or saved.given:
            continue
        loop = module.enclosing(value, ast.For, ast.While, ast.FunctionDef)
        if isinstance(loop, ast.For) and is_name(loop.target, value.id):
            statement = module.statement(value)
            batches = [
                s for s in loop.body if isinstance(s, ast.For) and s.lineno < statement.lineno
            ]
            if batches or _calls_training(loop, statement):
                yield key


def _calls_training(loop: ast.For, before: ast.stmt) -> bool:
    """`train_one_epoch(...)` is before it in the loop."""
    calls = (c for s in loop.body if s.lineno < before.lineno for c in below(s, ast.Call))
    return any("train" in written(c.func).rpartition(".")[2] and c.args for c in calls)


def _begins_there(module: Module, node: ast.expr) -> bool:
    """`start = checkpoint["epoch"]`, as it is, and `range(start, ...)` of the epochs."""
    value: ast.AST | None = (
        module.parent(node) if isinstance(module.parent(node), ast.Call) else node
    )
    up = module.parent(value) if value is not None else None
    match up:
        case ast.Assign([ast.Name(name) | ast.Attribute(attr=name)]):
            pass
        case _:
            return False
    if any(_names(added.target) == name for added in module.all(ast.AugAssign)):
        return False  # `start += 1`
    for loop in module.all(ast.For):
        match loop.iter:
            case ast.Call(ast.Name("range"), [first, _, *_]) if _names(first) == name:
                return True
    return False


def _names(node: ast.expr) -> str:
    match node:
        case ast.Name(name) | ast.Attribute(attr=name):
            return name
    return ""
