"""Shapes of code that are written as code: `torch.exp(A - A.detach())` is found in a pasted fragment, with what its letters stand for.

A capital letter stands for anything, the same letter for the same thing; `_` for anything at all, and a last `...` for further arguments.
Calls are compared by their last name, so `F.softmax(x, 1)`, `torch.softmax(x, 1)` and `x.softmax(1)` are one; keywords may be in the code that the pattern does not have.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache

__all__ = ["Bound", "find", "words_of"]

Bound = dict[str, ast.AST]

# what is before a function's name and is not a value
_HOMES = re.compile(r"(?:torch|np|numpy|math|copy|F|nn|functional|utils|cuda|self\.nn)(?:\.\w+)*")
_ANY = re.compile(r"[A-Z]")


@cache
def _pattern(text: str) -> ast.AST:
    tree = ast.parse(text).body[0]
    return tree.value if isinstance(tree, ast.Expr) else tree


@cache
def words_of(pattern: str) -> frozenset[str]:
    """Names that code must hold to have this shape."""
    return frozenset(re.findall(r"[A-Za-z_]\w{2,}", pattern)) - {"torch", "None", "True", "False"}


def find(
    pattern: str, tree: ast.AST, bound: Bound | None = None
) -> Iterator[tuple[ast.AST, Bound]]:
    """Each place with the shape, and what its letters stand for there."""
    wanted = _pattern(pattern)
    for node in ast.walk(tree):
        held = dict(bound or {})
        if _same(wanted, node, held):
            yield node, held


def _same(want: ast.AST, node: ast.AST, bound: Bound) -> bool:
    match want, node:
        case ast.Name(id="_"), _:
            return True
        case ast.Name(id=letter), ast.expr() if _ANY.fullmatch(letter):
            return _stands_for(letter, node, bound)
        case ast.Call(), ast.Call():
            return _same_call(want, node, bound)
        case ast.Constant(value=a), ast.Constant(value=b):
            return type(a) is type(b) and bool(a == b)
        case ast.UnaryOp(op=ast.USub(), operand=ast.Constant(value=a)), ast.UnaryOp(
            op=ast.USub(), operand=ast.Constant(value=b)
        ):
            return bool(a == b)
    if type(want) is not type(node):
        return False
    return all(
        _same_field(getattr(want, name), getattr(node, name, None), bound)
        for name in want._fields
        if name not in {"ctx", "type_comment", "kind"}
    )


def _same_field(want: object, given: object, bound: Bound) -> bool:
    match want, given:
        case ast.AST(), ast.AST():
            return _same(want, given, bound)
        case list(), list():
            return len(want) == len(given) and all(
                _same_field(a, b, bound) for a, b in zip(want, given, strict=True)
            )
    return bool(want == given)


def _stands_for(letter: str, node: ast.AST, bound: Bound) -> bool:
    known = bound.setdefault(letter, node)
    return known is node or ast.unparse(known) == ast.unparse(node)


def _same_call(want: ast.Call, node: ast.Call, bound: Bound) -> bool:
    (name, wanted), (called, given) = _arguments(want), _arguments(node)
    if _ANY.fullmatch(name) and name != "_":
        if not _stands_for(name, node.func, bound):
            return False
        wanted, given = list(want.args), list(node.args)
    elif name not in {called, "_"}:
        return False
    more = bool(wanted) and isinstance(wanted[-1], ast.Constant) and wanted[-1].value is ...
    if more:
        wanted = wanted[:-1]
    if len(given) < len(wanted) or (len(given) > len(wanted) and not more):
        return False
    keywords = {k.arg: k.value for k in node.keywords}
    return all(_same(a, b, bound) for a, b in zip(wanted, given, strict=False)) and all(
        k.arg in keywords and _same(k.value, keywords[k.arg], bound) for k in want.keywords
    )


def _arguments(call: ast.Call) -> tuple[str, list[ast.expr]]:
    """The last name of what is called, and its arguments; of a method, what it is called on comes first."""
    match call.func:
        case ast.Attribute(value=owner, attr=name):
            home = _HOMES.fullmatch(ast.unparse(owner)) is not None
            return name, [*([] if home else [owner]), *call.args]
        case ast.Name(id=name):
            return name, list(call.args)
        case ast.Call():
            return _arguments(call.func)[0], list(call.args)  # nn.BCELoss()(a, b)
    return "", list(call.args)
