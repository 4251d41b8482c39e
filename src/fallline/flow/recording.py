"""Whether autograd records where a piece of code runs, as far as the file shows it."""

from __future__ import annotations

import ast

from fallline.flow.calls import last_name
from fallline.syntax import Module

__all__ = ["turns_off", "under_no_grad"]

_OFF = frozenset({"no_grad", "inference_mode"})


def turns_off(node: ast.AST) -> bool:
    """`with torch.no_grad():`, or a function that is decorated so."""
    match node:
        case ast.With(items):
            return any(last_name(i.context_expr) in _OFF for i in items)
        case ast.FunctionDef(decorator_list=marks) | ast.AsyncFunctionDef(decorator_list=marks):
            return any(last_name(mark) in _OFF for mark in marks)
    return False


def under_no_grad(module: Module, node: ast.AST) -> bool:
    """Whether the function that this is in does it without recording."""
    for up in module.parents(node):
        if turns_off(up):
            return True
        if isinstance(up, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            return False
    return False
