"""Functions of a script that nothing calls any more: what they do wrong, nobody meets."""

from __future__ import annotations

import ast
import re

from fallline.syntax.module import Module
from fallline.syntax.once import once

__all__ = ["never_runs"]

_Functions = dict[str, ast.FunctionDef | ast.AsyncFunctionDef]
# Whoever calls a function by a name that is put together while the program runs.
_BY_NAME = re.compile(r"(?<![.\w])(globals|locals|vars|eval|exec)\(|\bfire\b|sys\.modules")


def never_runs(module: Module, line: int) -> bool:
    """Whether this line is in a plain function of a script from which no way leads there, and that no other file imports."""
    around = [n for n in module.tree.body if n.lineno <= line <= (n.end_lineno or 0)]
    match around:
        case [ast.FunctionDef() | ast.AsyncFunctionDef() as function]:
            return function.name in _dead(module)
    return False


@once
def _dead(module: Module) -> frozenset[str]:
    functions: _Functions = {
        n.name: n
        for n in module.tree.body
        if isinstance(n, ast.FunctionDef | ast.AsyncFunctionDef) and not n.decorator_list
    }
    alive = _alive(module, functions)
    dead = frozenset(functions) - alive
    # a file of functions alone is there for others; a script begins with one of its own
    if not dead or not alive or _BY_NAME.search(module.source.text) or _imported(module):
        return frozenset()
    return dead


def _alive(module: Module, functions: _Functions) -> frozenset[str]:
    """The functions that the rest of the file names, and those that these name, and so on."""
    plain = {id(f) for f in functions.values()}
    rest: list[ast.stmt] = [n for n in module.tree.body if id(n) not in plain]
    if not any(isinstance(n, ast.If | ast.Expr | ast.For | ast.With | ast.Assign) for n in rest):
        return frozenset()
    alive: set[str] = set()
    while rest:
        for name in _named(rest.pop()) & functions.keys() - alive:
            alive.add(name)
            rest.append(functions[name])
    return frozenset(alive)


def _named(statement: ast.stmt) -> set[str]:
    found: set[str] = set()
    for node in ast.walk(statement):
        match node:
            case ast.Name(name) | ast.Attribute(attr=name) | ast.Constant(str(name)):
                found.add(name)
    return found


def _imported(module: Module) -> bool:
    return module.project is not None and module.project.imports(module)
