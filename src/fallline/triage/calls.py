"""Calls in pasted code, and facts about it: what is called, of what, with which number, and where."""

from __future__ import annotations

import ast

from fallline.syntax.nodes import below
from fallline.triage.point import quoted

__all__ = ["Facts", "at", "calls", "keyword", "kind_of", "name_of", "number", "owner_of"]

Facts = dict[str, dict[str, str]]  # a fact, and what stands for the holes of a sentence about it

_DEEP = 4  # names that stand for other names


def name_of(call: ast.Call) -> str:
    match call.func:
        case ast.Attribute(attr=name) | ast.Name(id=name):
            return name
    return ""


def kind_of(node: ast.expr) -> str:
    return name_of(node) if isinstance(node, ast.Call) else ""


def owner_of(call: ast.Call) -> str:
    return ast.unparse(call.func.value) if isinstance(call.func, ast.Attribute) else ""


def calls(tree: ast.AST, *names: str) -> list[ast.Call]:
    return [c for c in below(tree, ast.Call) if name_of(c) in names]


def keyword(call: ast.Call, name: str) -> ast.expr | None:
    return next((k.value for k in call.keywords if k.arg == name), None)


def number(node: ast.expr | None, tree: ast.AST, depth: int = 0) -> float | None:
    """A number that is written out, also as a product (`16 * 6 * 6`), or that a name was given once."""
    match node:
        case ast.Constant(value=int() | float() as value):
            return float(value)
        case ast.UnaryOp(op=ast.USub(), operand=inner):
            return None if (positive := number(inner, tree, depth)) is None else -positive
        case ast.BinOp(left=left, op=op, right=right):
            one, two = number(left, tree, depth), number(right, tree, depth)
            return None if one is None or two is None else _reckoned(one, op, two)
        case ast.Name(id=name) if depth < _DEEP:
            given = [a.value for a in below(tree, ast.Assign) for t in a.targets if _is(t, name)]
            return number(given[0], tree, depth + 1) if len(given) == 1 else None
    return None


def _is(node: ast.expr, name: str) -> bool:
    return ast.unparse(node) == name


def _reckoned(one: float, op: ast.operator, two: float) -> float | None:
    match op:
        case ast.Mult():
            return one * two
        case ast.Add():
            return one + two
        case ast.Sub():
            return one - two
        case ast.FloorDiv() if two:
            return one // two
        case ast.Div() if two:
            return one / two
    return None


def at(hole: str, node: ast.AST, **more: str) -> dict[str, str]:
    return {hole: quoted(node), f"{hole}_line": str(getattr(node, "lineno", 0)), **more}
