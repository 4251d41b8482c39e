"""What grows from update to update: storages that outlive theirs, by the line that made them, and graphs that are kept.

A kept loss holds few bytes and a whole graph of nodes, so graphs are counted too: a token on a loss's last node dies with it.
"""

from __future__ import annotations

import linecache
import weakref
from collections import deque
from dataclasses import dataclass, field
from itertools import pairwise
from statistics import median
from typing import Any

import torch

from fallline.instruments.memory.ledger import BATCH, Entry, Ledger
from fallline.location import Location
from fallline.taps.frames import place, user_frames
from fallline.watcher.kept import keeper
from fallline.watcher.memory import live_bytes

__all__ = ["Growing", "Growth", "Line"]

_SETTLED = 1  # the first update allocates what stays: optimizer state, buffers, workspaces
_OLD = 2  # updates: the tensors of the last iteration are still in their variables
_SHARE = 0.6  # of the updates must have left something behind for a line to grow
_NOISE = 1024  # bytes per update below which nothing is called a leak
_MOST_NODES = 200_000
_TOKEN = "fallline.memory"


class _Token:
    __slots__ = ("__weakref__",)


@dataclass
class Line:
    """A line whose tensors outlive their update."""

    at: Location
    per_update: float  # bytes
    tensors: float  # per update
    module: str

    @property
    def source(self) -> str:
        return linecache.getline(self.at.path, self.at.line).strip()


@dataclass
class Growth:
    """What has grown, per update."""

    updates: int = 0  # over how many it was looked for
    per_update: float = 0.0  # bytes of storages that were left behind
    process: float | None = None  # growth of the process (of the allocator on an accelerator)
    lines: list[Line] = field(default_factory=list)
    graphs: int = 0  # of past updates that are still alive
    nodes: int = 0  # in the graph of one loss
    loss_at: Location | None = None
    kept_at: Location | None = None  # the statement that keeps the loss
    how: str = ""  # "append" | "add" | "assign"
    holder: str = ""  # the name of the container that holds them

    @property
    def leaks(self) -> bool:
        return self.per_update >= _NOISE or self.graphs > 0


class Growing(Ledger):
    """A ledger that also looks for what is left behind. `last` is the number of the last update."""

    def __init__(self, last: int) -> None:
        super().__init__()
        self.last = last
        self.growth = Growth()
        self._tokens: deque[tuple[weakref.ref[_Token], int, Location | None]] = deque(maxlen=4096)
        self._process: list[int] = []

    def backward_begins(self, loss: Any) -> None:
        super().backward_begins(loss)
        node: Any = loss.grad_fn if isinstance(loss, torch.Tensor) else None
        if node is not None and _TOKEN not in node.metadata:
            token = _Token()
            node.metadata[_TOKEN] = token
            self._tokens.append((weakref.ref(token), self.update, self._backward_at))
            if self.update <= _SETTLED:
                self.growth.nodes = _count(node)

    def update_ends(self, number: int) -> None:
        super().update_ends(number)
        size = live_bytes()
        if size is not None:
            self._process.append(size)
        if number > _OLD + _SETTLED:
            self._look(number)

    def _look(self, number: int) -> None:
        growth = self.growth
        growth.updates = number - _OLD - _SETTLED + 1
        groups: dict[Location, list[Entry]] = {}
        for entry in self.living():
            if _SETTLED <= entry.update <= number - _OLD and entry.at is not None:
                groups.setdefault(entry.at, []).append(entry)
        lines = []
        left: set[int] = set()
        for at, entries in groups.items():
            if len({e.update for e in entries}) >= max(2, _SHARE * growth.updates):
                size = sum(e.size for e in entries)
                module = max(entries, key=lambda e: e.size).module
                lines.append(Line(at, size / growth.updates, len(entries) / growth.updates, module))
                left.update(map(id, entries))
        growth.lines = sorted(lines, key=lambda line: -line.per_update)
        growth.per_update = sum(line.per_update for line in lines)
        if len(self._process) > _OLD + _SETTLED:
            # the median: the process also grows by leaps, when its heap does
            growth.process = median(b - a for a, b in pairwise(self._process[_SETTLED:]))
        self._graphs(number)
        if number == self.last and growth.leaks:
            growth.holder = self._holder(left)

    def _graphs(self, number: int) -> None:
        old = [
            at
            for token, update, at in self._tokens
            if update <= number - _OLD and token() is not None
        ]
        growth = self.growth
        growth.graphs = len(old) if len(old) >= 2 else 0
        if growth.graphs:
            growth.loss_at = old[0]
        if growth.leaks and growth.kept_at is None:
            where = place()
            places = [old[0]] if growth.graphs else []
            places += [line.at for line in growth.lines[:4]]
            places += [where.at, *where.callers] if where is not None else []
            for at in places:
                found = keeper(at) if at is not None else None
                if at is not None and found is not None:
                    statement, growth.how = found
                    growth.kept_at = Location(
                        at.path, statement.lineno, statement.col_offset + 1, function=at.function
                    )
                    return

    def _holder(self, left: set[int]) -> str:
        """The list, deque, dictionary or set in the user's frames that holds most of what is left."""
        best, most = "", 1
        for frame in user_frames():
            spaces = [("", dict(frame.f_locals)), ("", dict(frame.f_globals))]
            for name, value in list(spaces[0][1].items()):
                if hasattr(value, "__dict__") and not isinstance(value, type | torch.Tensor):
                    spaces.append((f"{name}.", dict(vars(value))))
            for prefix, names in spaces:
                for name, value in names.items():
                    count = self._held(value, left)
                    if count > most:
                        best, most = f"{prefix}{name}", count
        return best

    def _held(self, value: Any, left: set[int]) -> int:
        if not isinstance(value, list | deque | dict | set):
            return 0
        found = 0
        for part in list(value.values() if isinstance(value, dict) else value)[-1000:]:
            for tensor in part if isinstance(part, tuple | list) else (part,):
                if isinstance(tensor, torch.Tensor) and not isinstance(tensor, torch.nn.Parameter):
                    entry = self.entry_of(tensor)
                    kept = entry is not None and id(entry) in left
                    graph = tensor.grad_fn is not None and entry is not None and entry.role != BATCH
                    found += kept or (graph and self.growth.graphs > 0)
        return found


def _count(root: Any) -> int:
    """How many nodes a graph has."""
    seen, queue = {root}, [root]
    while queue and len(seen) < _MOST_NODES:
        for node, _ in queue.pop().next_functions:
            if node is not None and node not in seen:
                seen.add(node)
                queue.append(node)
    return len(seen)
