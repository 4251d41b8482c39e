"""A condition of a library's source in words, where it is simple; as code where it is not."""

from __future__ import annotations

import ast

__all__ = ["in_words"]

_LONGEST = 90
_OPS: dict[type[ast.cmpop], tuple[str, str]] = {
    ast.Is: ("is", "is not"),
    ast.IsNot: ("is not", "is"),
    ast.Eq: ("is", "is not"),
    ast.NotEq: ("is not", "is"),
    ast.In: ("is in", "is not in"),
    ast.NotIn: ("is not in", "is in"),
    ast.Lt: ("is less than", "is not less than"),
    ast.LtE: ("is at most", "is more than"),
    ast.Gt: ("is more than", "is not more than"),
    ast.GtE: ("is at least", "is less than"),
}


def in_words(test: ast.expr, holds: bool = True) -> str:
    """What a test asks, or with `holds=False` its opposite."""
    match test:
        case ast.UnaryOp(op=ast.Not(), operand=inner):
            return in_words(inner, not holds)
        case ast.BoolOp(op=op, values=values):
            joined = " and " if isinstance(op, ast.And) == holds else " or "
            return joined.join(in_words(value, holds) for value in values)
        case ast.Compare(left=left, ops=[op], comparators=[right]) if type(op) in _OPS:
            said = _OPS[type(op)][0 if holds else 1]
            return f"{_code(left)} {said} {_code(right)}"
        case ast.Call(func=ast.Name(id="isinstance"), args=[what, kind]):
            kinds = kind.elts if isinstance(kind, ast.Tuple) else [kind]
            named = " or ".join(_code(k) for k in kinds)
            return f"{_code(what)} {'is' if holds else 'is not'} a {named}"
        case ast.Call(func=ast.Name(id="hasattr"), args=[what, ast.Constant(value=str(name))]):
            return f"{_code(what)} {'has' if holds else 'has no'} `{name}`"
        case ast.Name() | ast.Attribute():
            return f"{_code(test)} {'is set' if holds else 'is not set'}"
    return f"{_code(test)} {'holds' if holds else 'does not hold'}"


def _code(node: ast.expr) -> str:
    text = ast.unparse(node)
    return f"`{text if len(text) <= _LONGEST else text[: _LONGEST - 1] + '…'}`"
