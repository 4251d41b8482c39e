"""The nodes below a node, quickly."""

from __future__ import annotations

import ast
from typing import Any, TypeVar, overload

__all__ = [
    "FIELDS",
    "PLAIN",
    "below",
    "children",
    "fields_of",
    "is_name",
    "methods_called",
    "methods_of",
    "names_bound",
    "names_read",
    "walk",
]

Node = TypeVar("Node", bound=ast.AST)
Other = TypeVar("Other", bound=ast.AST)

# Fields that hold no nodes, or nodes without a place (operators, load and store) that are shared between trees.
_NO_NODES = frozenset(
    "ctx op ops id attr arg kind type_comment asname level conversion is_async simple n s".split()
)
PLAIN = frozenset({type(None), str, int, float, complex, bool, bytes, type(...)})
FIELDS: dict[type, tuple[str, ...]] = {ast.Constant: ()}


def children(node: ast.AST) -> list[ast.AST]:
    """The nodes right below one, in source order, without those that have no place; `ast.iter_child_nodes` takes three times as long."""
    kind = node.__class__
    if kind not in FIELDS:
        FIELDS[kind] = fields_of(kind)
    found: list[ast.AST] = []
    for name in reversed(FIELDS[kind]):
        value: Any = getattr(node, name, None)
        if value.__class__ is list:
            found += [item for item in value if item.__class__ not in PLAIN]
        elif value.__class__ not in PLAIN:
            found.append(value)
    return found


def walk(node: ast.AST) -> list[ast.AST]:
    """A node and all below it, the outer ones first; see `children`."""
    found = [node]
    for here in found:
        found += children(here)
    return found


@overload
def below(node: ast.AST, kind: type[Node], /) -> list[Node]: ...
@overload
def below(node: ast.AST, kind: type[Node], other: type[Other], /) -> list[Node | Other]: ...
@overload
def below(node: ast.AST, *kinds: type[Node]) -> list[Node]: ...
def below(node: ast.AST, *kinds: type[ast.AST]) -> list[Any]:
    """The nodes of these types in a piece of code, itself included, the outer ones first. Operators have no place and are not found."""
    return [n for n in walk(node) if isinstance(n, kinds)]


def methods_of(cls: ast.ClassDef) -> list[ast.FunctionDef]:
    """The methods that a class defines itself."""
    return [m for m in cls.body if isinstance(m, ast.FunctionDef)]


def methods_called(node: ast.AST) -> set[str]:
    """The last names of the attributes that a piece of code calls: `step` of `optimizer.step()`."""
    return {c.func.attr for c in below(node, ast.Call) if isinstance(c.func, ast.Attribute)}


def is_name(node: ast.AST | None, name: str) -> bool:
    """Whether a node is this plain name."""
    return isinstance(node, ast.Name) and node.id == name


def names_read(node: ast.AST) -> list[ast.Name]:
    """The plain names that a piece of code reads."""
    return [n for n in below(node, ast.Name) if isinstance(n.ctx, ast.Load)]


def names_bound(node: ast.AST) -> list[ast.Name]:
    """The plain names that it binds or deletes."""
    return [n for n in below(node, ast.Name) if not isinstance(n.ctx, ast.Load)]


def fields_of(kind: type[ast.AST]) -> tuple[str, ...]:
    """Those of a type that hold nodes."""
    # reversed, so that nodes of one type come off a stack in source order
    return tuple(f for f in reversed(kind._fields) if f not in _NO_NODES)
