"""Where a tensor was filled with an infinity, so that softmax leaves some places out: and whether it still holds it."""

from __future__ import annotations

import ast
import math
import re

from fallline.flow.calls import last_name, operand, receiver
from fallline.flow.makers import SHAPE_OPS
from fallline.flow.values import values_of
from fallline.syntax import Module
from fallline.syntax.once import once

__all__ = ["infinity_in", "is_infinite", "names_infinity"]

_DEEPEST = 10
_INFINITY = re.compile(r"inf(inity)?\b")
# What leaves an infinity where it is.
_KEEPS = SHAPE_OPS | {"log_softmax", "neg", "clone", "add", "sub", "div", "mul", "type_as"}
_KEEPING_LAYERS = frozenset({"LogSoftmax", "Dropout", "Identity"})


@once
def names_infinity(module: Module) -> bool:
    """Whether a file writes an infinity at all: asked before every product is followed to where it comes from."""
    text = module.source.text
    return _INFINITY.search(text) is not None or "Inf" in text or "INF" in text


def is_infinite(module: Module, node: ast.expr | None) -> bool:
    """`float("-inf")`, `-math.inf`, `torch.inf`."""
    number = module.number(node)
    return number is not None and math.isinf(number)


def infinity_in(module: Module, node: ast.expr | None, depth: int = 0) -> ast.AST | None:
    """Where what this value holds was filled with an infinity; None where it was not, or no longer is there."""
    if node is None or depth > _DEEPEST:
        return None
    if isinstance(node, ast.Name):
        placed = _filled_in_place(module, node)
        if placed is not None:
            return placed
    origin = values_of(module).origin(node)
    match origin:
        case ast.Call():
            return _in_call(module, origin, depth)
        case ast.BinOp(left, ast.Add() | ast.Sub() | ast.Div(), right):
            return infinity_in(module, left, depth + 1) or infinity_in(module, right, depth + 1)
        case ast.UnaryOp(ast.USub(), inner) | ast.Subscript(value=inner):
            return infinity_in(module, inner, depth + 1)
        case ast.Name() if origin is not node:
            return infinity_in(module, origin, depth + 1)
    return None


def _in_call(module: Module, call: ast.Call, depth: int) -> ast.AST | None:
    name = last_name(call)
    of = receiver(module, call)
    if name in {"masked_fill", "masked_fill_"}:
        if is_infinite(module, operand(module, call, "value", place=1)):
            return call
        return infinity_in(module, of, depth + 1)
    if name == "where" and len(call.args) == 3:
        if any(is_infinite(module, a) for a in call.args[1:]):
            return call
        return None
    if name == "log" and isinstance(
        inner := values_of(module).origin(of) if of else None, ast.Call
    ):
        # softmax makes a 0 of it, and the logarithm the infinity again
        softmax = last_name(inner) == "softmax"
        return infinity_in(module, receiver(module, inner), depth + 1) if softmax else None
    made = values_of(module).constructed(call.func)
    if made is not None and last_name(made) in _KEEPING_LAYERS and call.args:
        return infinity_in(module, call.args[0], depth + 1)
    return infinity_in(module, of, depth + 1) if name in _KEEPS else None


def _filled_in_place(module: Module, use: ast.Name) -> ast.AST | None:
    """`scores.masked_fill_(mask, -inf)` or `scores[mask] = -inf` before this use, with nothing assigned in between."""
    scope, line = module.scope(use), use.lineno
    filled = [p for p in _places(module).get(use.id, ()) if p.lineno < line]
    if not filled:
        return None
    bound = [getattr(b, "lineno", 0) for b in module.bindings(use.id, scope)]
    since = max((b for b in bound if b < line), default=0)
    return next((p for p in filled if since <= p.lineno and module.scope(p) is scope), None)


@once
def _places(module: Module) -> dict[str, list[ast.Call | ast.Subscript]]:
    """By name: where it is filled with an infinity in place."""
    found: dict[str, list[ast.Call | ast.Subscript]] = {}
    for call in module.method_calls("masked_fill_"):
        match call.func:
            case ast.Attribute(ast.Name(name)):
                if is_infinite(module, module.argument(call, 1, "value")):
                    found.setdefault(name, []).append(call)
    for target in module.all(ast.Subscript):
        match target, module.parent(target):
            case ast.Subscript(ast.Name(name), _, ast.Store()), ast.Assign(value=value):
                if is_infinite(module, value):
                    found.setdefault(name, []).append(target)
    return found
