"""Where the nodes of a tree are: numbered once, outer before inner, so that a piece of code is a slice of one list."""

from __future__ import annotations

import ast
from bisect import bisect_left
from collections.abc import Callable, Iterator
from operator import attrgetter
from typing import Any, TypeVar

__all__ = ["Index", "children", "index_of"]

Node = TypeVar("Node", bound=ast.AST)
Scope = TypeVar("Scope", bound=ast.AST)

# Fields that hold no nodes, or nodes without a place (operators, load and store) that are shared between trees.
_NO_NODES = frozenset(
    "ctx op ops id attr arg kind type_comment asname level conversion is_async simple n s".split()
)
_PLAIN = frozenset({type(None), str, int, float, complex, bool, bytes, type(...)})
_FIELDS: dict[type, tuple[str, ...]] = {ast.Constant: ()}

_start: Callable[[ast.AST], int] = attrgetter("start")

# of more types than this, one look at each node is cheaper than a search for each type
_FEW = 4


class Index:
    """The nodes of one tree in the order in which they are written, all together and by type.

    It hangs at the root. A node knows its place (`start`), the one it is in (`parent`) and the first one behind all that is
    in it (`after`): links of the tree that Python's own nodes lack.
    """

    def __init__(self, tree: ast.AST) -> None:
        self.nodes: list[ast.AST] = []
        self.by_type: dict[type, list[Any]] = {}
        self._meant: dict[tuple[type, ...], list[type]] = {}
        self._number(tree)

    def _number(self, tree: Any) -> None:
        # The hottest loop there is: half the time of reading a file that has nothing wrong in it.
        by_type, nodes, fields, plain = self.by_type, self.nodes, _FIELDS, _PLAIN
        tree.index, tree.parent, tree.after = self, None, None
        stack: list[Any] = [tree]
        pop, push, number = stack.pop, stack.append, nodes.append
        while stack:
            node = pop()
            kind = node.__class__
            node.start = len(nodes)
            number(node)
            try:
                by_type[kind].append(node)
            except KeyError:
                by_type[kind] = [node]
                if kind not in fields:
                    fields[kind] = _fields_of(kind)
            after = node.after
            for name in fields[kind]:
                value: Any = getattr(node, name, None)
                if value.__class__ is list:
                    for item in value[::-1]:
                        if item.__class__ not in plain:
                            item.parent, item.after = node, after
                            push(item)
                            after = item
                elif value.__class__ not in plain:
                    value.parent, value.after = node, after
                    push(value)
                    after = value

    def release(self) -> None:
        """Let go of the links upwards, so that the tree is freed at once and not by the garbage collector."""
        node: Any
        for node in self.nodes:
            node.parent = None
        del self.nodes[0].__dict__["index"]

    def below(self, node: Any) -> list[ast.AST]:
        """A node and all below it."""
        return self.nodes[node.start : self._stop(node)]

    def below_of(self, node: Any, kinds: tuple[type, ...]) -> list[Any]:
        """Those of these types, subtypes included."""
        meant = self._meant.get(kinds)
        if meant is None:
            meant = self._meant[kinds] = [k for k in self.by_type if issubclass(k, kinds)]
        start, stop = node.start, self._stop(node)
        if len(meant) > _FEW:
            return [n for n in self.nodes[start:stop] if isinstance(n, kinds)]
        found: list[Any] = []
        for kind in meant:
            nodes = self.by_type[kind]
            first = bisect_left(nodes, start, key=_start)
            found += nodes[first : bisect_left(nodes, stop, first, key=_start)]
        return self.sorted(found) if len(meant) > 1 else found

    @staticmethod
    def sorted(found: list[Node]) -> list[Node]:
        """In the order in which they are written."""
        found.sort(key=_start)
        return found

    def inside(self, node: Any, found: list[Node]) -> list[Node]:
        """Those of some nodes, in the order in which they are written, that are in this one."""
        first = bisect_left(found, node.start, key=_start)
        return found[first : bisect_left(found, self._stop(node), first, key=_start)]

    def scoped(
        self, found: list[Node], scopes: tuple[type[Scope], ...]
    ) -> Iterator[tuple[Node, Scope | None]]:
        """Some nodes in the order in which they are written, each with the innermost scope around it: in one sweep, without a climb from every node."""
        begun: list[tuple[int, Scope | None]] = [(len(self.nodes), None)]
        ahead = self.below_of(self.nodes[0], scopes)[::-1]
        for node in found:
            start = _start(node)
            while ahead and ahead[-1].start < start:
                scope = ahead.pop()
                begun.append((self._stop(scope), scope))
            while begun[-1][0] <= start:
                begun.pop()
            yield node, begun[-1][1]

    def _stop(self, node: Any) -> int:
        return len(self.nodes) if node.after is None else node.after.start


def index_of(node: Any) -> Index | None:
    """The index of the tree that a node is in; None for one that was made or parsed apart."""
    if "start" not in node.__dict__:
        return None
    while node.parent is not None:
        node = node.parent
    found: Index | None = node.__dict__.get("index")  # none where the tree was released
    return found


def children(node: ast.AST) -> list[ast.AST]:
    """The nodes right below one, in source order, without those that have no place; `ast.iter_child_nodes` takes three times as long."""
    kind = node.__class__
    if kind not in _FIELDS:
        _FIELDS[kind] = _fields_of(kind)
    found: list[ast.AST] = []
    for name in reversed(_FIELDS[kind]):
        value: Any = getattr(node, name, None)
        if value.__class__ is list:
            found += [item for item in value if item.__class__ not in _PLAIN]
        elif value.__class__ not in _PLAIN:
            found.append(value)
    return found


def _fields_of(kind: type[ast.AST]) -> tuple[str, ...]:
    """Those of a type that hold nodes."""
    # reversed, so that nodes of one type come off a stack in source order
    return tuple(f for f in reversed(kind._fields) if f not in _NO_NODES)
