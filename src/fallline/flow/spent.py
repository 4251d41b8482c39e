"""Iterators that are empty by the time they are used: `model.parameters()`, a generator or a `filter` kept under a name can be gone through once."""

from __future__ import annotations

import ast
from dataclasses import dataclass

from fallline.flow.values import values_of
from fallline.syntax import Module

__all__ = ["Spent", "spent"]

_MAKES = {"filter", "map", "zip", "itertools.chain", "itertools.chain.from_iterable"}
_USES_UP = {"list", "tuple", "set", "sum", "max", "min", "sorted", "len"}


@dataclass(frozen=True)
class Spent:
    """What the name holds, and the use that went through it before; None if it is the same line in the iteration before."""

    made: ast.expr
    by: ast.AST | None


def spent(module: Module, use: ast.expr | None) -> Spent | None:
    """Whether an iterator that this name holds has been gone through before this use of it."""
    if not isinstance(use, ast.Name):
        return None
    made = values_of(module).definition(use)
    if not isinstance(made, ast.expr) or not _is_iterator(module, made):
        return None
    scope = module.scope(made)
    if len(module.bindings(use.id, scope)) != 1:
        return None
    earlier = [
        other
        for other in values_of(module).uses(use.id, scope, module.statement(made))
        if _place(other) < _place(use) and _goes_through(module, other)
    ]
    if earlier:
        return Spent(made, min(earlier, key=_place))
    around = set(module.parents(made))
    loops = (up for up in module.parents(use) if isinstance(up, ast.For | ast.While))
    return Spent(made, None) if any(loop not in around for loop in loops) else None


def _is_iterator(module: Module, made: ast.expr) -> bool:
    match made:
        case ast.GeneratorExp():
            return True
        case ast.Call(ast.Attribute(attr="parameters")):
            # a class of the project may give a list
            return all(f.name != "parameters" for f in module.all(ast.FunctionDef))
        case ast.Call(func):
            return (module.resolve(func) or getattr(func, "id", "")) in _MAKES
    return False


def _goes_through(module: Module, use: ast.AST) -> bool:
    """The whole of it: a loop, an optimizer, `list`, a clip."""
    match module.parent(use):
        case ast.For(iter=over) | ast.comprehension(iter=over):
            return over is use
        case ast.Call(func, args) if use in args:
            name = module.resolve(func) or str(getattr(func, "id", ""))
            return name in _USES_UP or name.startswith(("torch.optim.", "torch.nn.utils.clip_grad"))
    return False


def _place(node: ast.AST) -> tuple[int, int]:
    return getattr(node, "lineno", 0), getattr(node, "col_offset", 0)
