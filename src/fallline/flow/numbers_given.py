"""The number behind an argument: what every call hands over, or the default where no call is seen."""

from __future__ import annotations

import ast

from fallline.flow.values import default_of, values_of
from fallline.syntax import Module

__all__ = ["number_given"]

_DEEPEST = 4


def number_given(module: Module, node: ast.expr | None, depth: int = _DEEPEST) -> float | None:
    """The number an expression stands for, through arguments too."""
    found = module.number(node)
    if node is None or found is not None or not depth:
        return found
    values = values_of(module)
    origin = values.origin(node)
    if not isinstance(origin, ast.arg):
        return module.number(origin)
    function = module.enclosing(origin, ast.FunctionDef)
    given: list[ast.expr] = values.passed(origin)
    if function is not None and not values.calls_of(function) and origin in function.args.args:
        default = default_of(function, origin)
        given = [default] if default is not None else []
    numbers = {number_given(module, value, depth - 1) for value in given}
    return numbers.pop() if len(numbers) == 1 else None
