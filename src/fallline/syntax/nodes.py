"""The nodes below a node, quickly."""

from __future__ import annotations

import ast
from typing import Any, TypeVar, overload

from fallline.syntax.index import children, index_of

__all__ = [
    "below",
    "children",
    "is_name",
    "methods_called",
    "methods_of",
    "names_bound",
    "names_read",
    "walk",
    "written",
]

Node = TypeVar("Node", bound=ast.AST)
Other = TypeVar("Other", bound=ast.AST)


def walk(node: ast.AST) -> list[ast.AST]:
    """A node and all below it as they are written, the outer ones before the inner ones; see `children`."""
    index = index_of(node)
    if index is not None:
        return index.below(node)
    found, stack = [], [node]
    while stack:
        found.append(stack.pop())
        stack += reversed(children(found[-1]))
    return found


@overload
def below(node: ast.AST, kind: type[Node], /) -> list[Node]: ...
@overload
def below(node: ast.AST, kind: type[Node], other: type[Other], /) -> list[Node | Other]: ...
@overload
def below(node: ast.AST, *kinds: type[Node]) -> list[Node]: ...
def below(node: ast.AST, *kinds: type[ast.AST]) -> list[Any]:
    """The nodes of these types in a piece of code, itself included, in the order of `walk`. Operators have no place and are not found."""
    index = index_of(node)
    if index is not None:
        return index.below_of(node, kinds)
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


def written(node: ast.AST) -> str:
    """`ast.unparse`, at once for `self.model.encoder`, which is what is mostly asked for."""
    parts: list[str] = []
    here = node
    while isinstance(here, ast.Attribute):
        parts.append(here.attr)
        here = here.value
    if not isinstance(here, ast.Name):
        return ast.unparse(node)
    parts.append(here.id)
    return ".".join(reversed(parts))


def names_read(node: ast.AST) -> list[ast.Name]:
    """The plain names that a piece of code reads."""
    return [n for n in below(node, ast.Name) if isinstance(n.ctx, ast.Load)]


def names_bound(node: ast.AST) -> list[ast.Name]:
    """The plain names that it binds or deletes."""
    return [n for n in below(node, ast.Name) if not isinstance(n.ctx, ast.Load)]
