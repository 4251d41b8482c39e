"""Graphs that outlive their iteration: `losses.append(loss)`, `total += loss`.

A small token on the last node of each graph dies with the graph. Tokens of several past updates that are still alive mean that
something keeps losses with their graphs; which statement does it is read from the source around the backward.
"""

from __future__ import annotations

import ast
import weakref
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

from fallline.events import Event, Forward, Keep
from fallline.location import Location
from fallline.replay.source import enclosing, statement_at
from fallline.syntax.nodes import below
from fallline.watcher.emit import Emitter
from fallline.watcher.loss import root_marker
from fallline.watcher.progress import Progress

__all__ = ["KeptGraphs", "keeper"]

How = Literal["append", "add", "assign"]
_Place = tuple[Location, tuple[Location, ...]]
_MARK = "fallline.loss"
ENOUGH = 2  # graphs of past iterations that are still alive
_PLAIN = frozenset({"item", "detach", "float", "tolist", "numpy", "cpu_", "data", "int"})


class Token:
    __slots__ = ("__weakref__",)


class KeptGraphs:
    """Counts graphs that are still alive, and says where they are kept."""

    def __init__(self, emitter: Emitter, progress: Progress) -> None:
        self._emitter = emitter
        self._progress = progress
        self._losses: deque[tuple[weakref.ref[Token], int, Event]] = deque(maxlen=256)
        self._last: dict[_Place, int] = {}  # the steps made before the last loss of each backward
        self._outputs: deque[tuple[weakref.ref[Any], int, Forward]] = deque(maxlen=256)
        self._reported: set[tuple[str, int]] = set()
        self.batches = 0  # that loaders have given

    def loss(self, loss: Any, event: Event) -> None:
        token = Token()
        if root_marker(loss, _MARK, token):
            self._last[event.at, event.callers] = self._progress.steps
            self._losses.append((weakref.ref(token), self._progress.steps, event))

    def output(self, mark: Any, event: Forward) -> None:
        self._outputs.append((weakref.ref(mark), self.batches, event))

    def stepped(self) -> int:
        """After a step: how many graphs of past iterations are alive.

        The last loss of each backward is still in its variable, however many other optimizers have stepped since.
        """
        while self._losses and self._losses[0][0]() is None:
            self._losses.popleft()
        old: dict[_Place, list[Event]] = {}
        for token, step, event in self._losses:
            place = (event.at, event.callers)
            if step < self._last[place] and token() is not None:
                old.setdefault(place, []).append(event)
        for events in old.values():
            if len(events) >= ENOUGH:
                self._report(events[0])
        return sum(map(len, old.values()))

    def pass_over(self) -> None:
        """A loader is exhausted: outputs of that pass that no backward walked and that are still alive were stored.

        A model that is called layer by layer has several outputs alike for one batch.
        """
        while self._outputs and self._outputs[0][0]() is None:
            self._outputs.popleft()
        by_place: dict[Location, list[tuple[int, Event]]] = {}
        for mark, batch, event in self._outputs:
            if mark() is not None and not event.used:
                by_place.setdefault(event.at, []).append((batch, event))
        for alive in by_place.values():
            if len({batch for batch, _ in alive}) > ENOUGH:
                self._report(alive[0][1])

    def _report(self, event: Event) -> None:
        if (event.at.path, event.at.line) in self._reported:
            return
        self._reported.add((event.at.path, event.at.line))
        for at in (event.at, *reversed(event.callers)):
            found = keeper(at)
            if found is not None:
                where = Location(
                    at.path, found[0].lineno, found[0].col_offset + 1, function=at.function
                )
                self._emitter.emit(Keep(where, how=found[1], reaches_backward=False))
                return


def keeper(at: Location) -> tuple[ast.stmt, How] | None:
    """The statement around this line that stores a tensor past the iteration, and how.

    Looked for in the loop around the line; a function that a loop calls keeps only what it puts into something that outlives the call.
    """
    statement = statement_at(at.path, at.line)
    around = enclosing(statement) if statement is not None else []
    loop = next((up for up in around if isinstance(up, ast.For | ast.While)), None)
    function = next((up for up in around if isinstance(up, ast.FunctionDef)), None)
    scope = loop or function
    if statement is None or scope is None:
        return None
    tainted = _tainted(statement, scope)
    for node in sorted(_statements(scope), key=lambda n: n.lineno):
        store = _store(node)
        if store is None or not _keeps_graph(store.value):
            continue
        known = bool(_names_in(store.value) & tainted)
        if known or (node is statement if loop is None else _calls(store.value)):
            if loop is not None or function is None or _outlives(store.into, function):
                return node, store.how
    return None


@dataclass(frozen=True, slots=True)
class _Store:
    """`into.append(value)`, `into += value`, `into[key] = value`."""

    into: ast.expr
    value: ast.expr
    how: How


def _statements(scope: ast.AST) -> list[ast.stmt]:
    return [n for n in below(scope, ast.stmt)]


def _tainted(statement: ast.stmt, scope: ast.AST) -> set[str]:
    """The names of this statement, and of whatever is computed from them with their graph."""
    tainted = _names_in(statement)
    for node in below(scope, ast.Assign):
        if _names_in(node.value) & tainted and _keeps_graph(node.value):
            tainted |= {n.id for t in node.targets for n in below(t, ast.Name)}
    return tainted


def _store(node: ast.stmt) -> _Store | None:
    match node:
        case ast.Expr(
            ast.Call(ast.Attribute(into, "append" | "extend" | "add" | "insert"), [*_, value])
        ):
            return _Store(into, value, "append")
        case ast.AugAssign(into, ast.Add() | ast.Sub(), value):
            return _Store(into, value, "add")
        case ast.Assign([into], ast.BinOp() as value) if ast.unparse(into) in map(
            ast.unparse, _terms(value)
        ):
            return _Store(into, value, "add")
        case ast.Assign([ast.Subscript(into)], value):
            return _Store(into, value, "assign")
    return None


def _outlives(into: ast.expr, function: ast.FunctionDef) -> bool:
    """Whether a container is still there when the function has returned: not a variable of its own."""
    root: ast.AST = into
    while isinstance(root, ast.Attribute | ast.Subscript):
        root = root.value
    if not isinstance(root, ast.Name):
        return True
    shared = {n for s in below(function, ast.Global, ast.Nonlocal) for n in s.names}  # fmt: skip
    own = {n.id for n in below(function, ast.Name) if isinstance(n.ctx, ast.Store)}
    return root.id not in own - shared


def _calls(value: ast.expr) -> bool:
    return bool(below(value, ast.Call))


def _terms(value: ast.expr) -> Iterator[ast.expr]:
    """What a sum or an average is made of: `0.9 * average + 0.1 * loss`."""
    if isinstance(value, ast.BinOp):
        yield from _terms(value.left)
        yield from _terms(value.right)
    else:
        yield value


def _keeps_graph(value: ast.AST) -> bool:
    """Nothing in the expression takes the plain number out of the tensor."""
    for node in ast.walk(value):
        if isinstance(node, ast.Attribute) and node.attr in _PLAIN:
            return False
        if (
            isinstance(node, ast.Call)
            and isinstance(node.func, ast.Name)
            and node.func.id in ("float", "int", "str")
        ):
            return False
    return not isinstance(value, ast.Constant)


def _names_in(node: ast.AST) -> set[str]:
    """Names that are not merely called or looked into, such as `loss_fn` and `optimizer`."""
    called = {id(n.func) for n in below(node, ast.Call)}
    return {
        n.id
        for n in below(node, ast.Name)
        if id(n) not in called and n.id not in ("torch", "F", "nn", "self")
    }
