"""Graphs that outlive their iteration: `losses.append(loss)`, `total += loss`.

A small token on the last node of each graph dies with the graph. Tokens of several past updates that are still alive mean that
something keeps losses with their graphs; which statement does it is read from the source around the backward.
"""

from __future__ import annotations

import ast
import weakref
from collections import deque
from collections.abc import Iterator
from typing import Any, Literal

from fallline.events import Event, Forward, Keep
from fallline.location import Location
from fallline.replay.source import enclosing, statement_at
from fallline.watcher.emit import Emitter
from fallline.watcher.loss import root_marker
from fallline.watcher.progress import Progress

__all__ = ["KeptGraphs", "keeper"]

How = Literal["append", "add", "assign"]
_MARK = "fallline.loss"
OLD = 2  # updates: the loss of the last iteration is still in its variable
ENOUGH = 2  # graphs of past updates that are still alive
_PLAIN = frozenset({"item", "detach", "float", "tolist", "numpy", "cpu_", "data", "int"})


class Token:
    __slots__ = ("__weakref__",)


class KeptGraphs:
    """Counts graphs that are still alive, and says where they are kept."""

    def __init__(self, emitter: Emitter, progress: Progress) -> None:
        self._emitter = emitter
        self._progress = progress
        self._losses: deque[tuple[weakref.ref[Token], int, Event]] = deque(maxlen=256)
        self._outputs: deque[tuple[weakref.ref[Any], Forward]] = deque(maxlen=256)
        self._reported: set[tuple[str, int]] = set()

    def loss(self, loss: Any, event: Event) -> None:
        token = Token()
        if root_marker(loss, _MARK, token):
            self._losses.append((weakref.ref(token), self._progress.steps, event))

    def output(self, mark: Any, event: Forward) -> None:
        self._outputs.append((weakref.ref(mark), event))

    def stepped(self) -> int:
        """After a step: how many graphs of past updates are alive."""
        while self._losses and self._losses[0][0]() is None:
            self._losses.popleft()
        now = self._progress.steps
        old = [
            event
            for token, step, event in self._losses
            if now - step >= OLD and token() is not None
        ]
        if len(old) >= ENOUGH:
            self._report(old[0])
        return len(old)

    def pass_over(self) -> None:
        """A loader is exhausted: outputs of that pass that no backward walked and that are still alive were stored."""
        while self._outputs and self._outputs[0][0]() is None:
            self._outputs.popleft()
        alive = [event for mark, event in self._outputs if mark() is not None and not event.used]
        by_place: dict[Location, list[Event]] = {}
        for event in alive:
            by_place.setdefault(event.at, []).append(event)
        for events in by_place.values():
            if len(events) > ENOUGH:
                self._report(events[0])

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
    """The statement in the loop around this line that stores a tensor past the iteration, and how."""
    statement = statement_at(at.path, at.line)
    if statement is None:
        return None
    loop = next((up for up in enclosing(statement) if isinstance(up, ast.For | ast.While)), None)
    if loop is None:
        return None
    tainted = _names_in(statement)
    for node in ast.walk(loop):
        if (
            isinstance(node, ast.Assign)
            and _names_in(node.value) & tainted
            and _keeps_graph(node.value)
        ):
            tainted |= {n.id for t in node.targets for n in ast.walk(t) if isinstance(n, ast.Name)}
    for node in sorted(
        (n for n in ast.walk(loop) if isinstance(n, ast.stmt)), key=lambda n: n.lineno
    ):
        how = _stores(node, tainted)
        if how is not None:
            return node, how
    return None


def _stores(node: ast.stmt, tainted: set[str]) -> How | None:
    value: ast.AST | None = None
    how: How = "append"
    if (
        isinstance(node, ast.Expr)
        and isinstance(node.value, ast.Call)
        and isinstance(node.value.func, ast.Attribute)
    ):
        if node.value.func.attr in ("append", "extend", "add", "insert") and node.value.args:
            value, how = node.value.args[-1], "append"
    elif isinstance(node, ast.AugAssign) and isinstance(node.op, ast.Add | ast.Sub):
        value, how = node.value, "add"
    elif isinstance(node, ast.Assign) and len(node.targets) == 1:
        target = ast.unparse(node.targets[0])
        if isinstance(node.value, ast.BinOp) and target in map(ast.unparse, _terms(node.value)):
            value, how = node.value, "add"
        elif isinstance(node.targets[0], ast.Subscript):
            value, how = node.value, "assign"
    if value is None or not _keeps_graph(value):
        return None
    calls = any(isinstance(n, ast.Call) for n in ast.walk(value))
    return how if _names_in(value) & tainted or calls else None


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
    called = {id(n.func) for n in ast.walk(node) if isinstance(n, ast.Call)}
    return {
        n.id
        for n in ast.walk(node)
        if isinstance(n, ast.Name)
        and id(n) not in called
        and n.id not in ("torch", "F", "nn", "self")
    }
