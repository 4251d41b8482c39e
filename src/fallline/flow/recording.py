"""Whether autograd records where a piece of code runs, as far as the file shows it."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from fallline.flow.calls import last_name
from fallline.syntax import Module

__all__ = ["OFF", "never_entered", "switched_off", "turns_off", "under_no_grad"]

OFF = frozenset({"no_grad", "inference_mode"})


def turns_off(node: ast.AST) -> bool:
    """`with torch.no_grad():`, or a function that is decorated so."""
    match node:
        case ast.With(items):
            return any(last_name(i.context_expr) in OFF for i in items)
        case ast.FunctionDef(decorator_list=marks) | ast.AsyncFunctionDef(decorator_list=marks):
            return any(last_name(mark) in OFF for mark in marks)
    return False


def under_no_grad(module: Module, node: ast.AST) -> bool:
    """Whether the function that this is in does it without recording."""
    for up in module.parents(node):
        if turns_off(up):
            return True
        if isinstance(up, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            return False
    return False


def switched_off(module: Module, node: ast.expr) -> bool:
    """`torch.set_grad_enabled(False)` before it in the same function, and nothing that turns it on again in between."""
    said = [
        call
        for call in module.all(ast.Call)
        if last_name(call) == "set_grad_enabled"
        and call.lineno < node.lineno
        and module.function(call) is module.function(node)
        and module.parent(call).__class__ is ast.Expr
    ]
    last = max(said, key=lambda call: call.lineno, default=None)
    return last is not None and bool(last.args) and module.constant(last.args[0]) is False


def never_entered(module: Module, names: frozenset[str]) -> Iterator[ast.Call]:
    """`with torch.no_grad() and autocast():` enters only the last: the calls of these names that are made and dropped."""
    for both in module.all(ast.BoolOp):
        if not isinstance(both.op, ast.And) or not isinstance(both.values[-1], ast.Call):
            continue
        if last_name(both.values[-1]) in names:
            continue
        for dropped in both.values[:-1]:
            if isinstance(dropped, ast.Call) and last_name(dropped) in names:
                yield dropped
