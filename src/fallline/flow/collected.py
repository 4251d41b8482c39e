"""Which items a list holds that is filled line by line (`layers = [a]`, `layers.append(b)`), and what a loop goes through."""

from __future__ import annotations

import ast

from fallline.syntax import Module
from fallline.syntax.nodes import is_name

__all__ = ["iterated", "listed"]

_DEEPEST = 6


def listed(module: Module, parts: list[ast.expr], depth: int = 0) -> list[ast.expr | None]:
    """The items of a call's arguments or of a list, in order, those behind a `*` too; None for what cannot be seen."""
    found: list[ast.expr | None] = []
    for part in parts:
        found += _items(module, part.value, depth) if isinstance(part, ast.Starred) else [part]
    return found


def _items(module: Module, node: ast.expr, depth: int) -> list[ast.expr | None]:
    if depth > _DEEPEST:
        return [None]
    match node:
        case ast.List(elts) | ast.Tuple(elts):
            return listed(module, elts, depth + 1)
        case ast.BinOp(left, ast.Add(), right):
            return _items(module, left, depth + 1) + _items(module, right, depth + 1)
        case ast.BinOp(left, ast.Mult(), _):
            return _items(module, left, depth + 1)
        case ast.ListComp(element, [ast.comprehension(ifs=[])]):
            return [element]
        case ast.Name():
            return _filled(module, node, depth)
    return [None]


def _filled(module: Module, name: ast.Name, depth: int) -> list[ast.expr | None]:
    """What a local list has been given up to here, a loop's once; None for what only one branch gives."""
    scope = module.scope(name)
    given: list[tuple[int, list[ast.expr | None]]] = []
    for binding in module.bindings(name.id, scope):
        match module.parent(binding):
            case (
                ast.Assign([_], ast.expr() as value)
                | ast.AnnAssign(value=ast.expr() as value)
                | ast.AugAssign(op=ast.Add(), value=value)
            ) as up if getattr(value, "lineno", 0) < name.lineno:
                given.append((up.lineno, _sure(module, up, _items(module, value, depth + 1))))
            case _:
                return [None]
    for call in module.method_calls("append", "extend", "insert"):
        match call:
            case ast.Call(ast.Attribute(held, method), [*_, item]) if is_name(held, name.id):
                if call.lineno > name.lineno or module.scope(call) is not scope:
                    continue
                items = [item] if method != "extend" else _items(module, item, depth + 1)
                given.append((call.lineno, _sure(module, call, items)))  # type: ignore[arg-type]
    given.sort(key=lambda pair: pair[0])
    return [item for _, items in given for item in items] or [None]


def _sure(module: Module, node: ast.AST, items: list[ast.expr | None]) -> list[ast.expr | None]:
    for up in module.parents(node):
        match up:
            case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.Lambda():
                break
            case ast.If() | ast.Try() | ast.Match() | ast.IfExp():
                return [None]
    return items


def iterated(module: Module, target: ast.AST) -> ast.expr | None:
    """What a loop goes through, for the name that it binds: itself, or its place in a `zip` or behind an `enumerate`."""
    place, up = None, module.parent(target)
    if isinstance(up, ast.Tuple):
        place, up = [e is target for e in up.elts].index(True), module.parent(up)
    match up:
        case ast.For(iter=rows) | ast.comprehension(iter=rows):
            pass
        case _:
            return None
    match rows, place:
        case ast.Call(ast.Name("zip"), args), int() if place < len(args):
            return args[place]
        case ast.Call(ast.Name("enumerate"), [inner, *_]), 1:
            return inner
    return rows if place is None else None
