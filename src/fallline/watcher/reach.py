"""Which parameters a backward reaches, as far as its graph shows."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from fallline.events import GradRead
from fallline.taps.frames import Place
from fallline.watcher.emit import Emitter, spot
from fallline.watcher.forwards import MARK
from fallline.watcher.loss import reached
from fallline.watcher.loss_graph import LossGraph
from fallline.watcher.objects import Objects
from fallline.watcher.owners import Owners
from fallline.watcher.window import Window

__all__ = ["WALKS_PER_SITE", "Reach"]

# Walking a whole graph costs a millisecond or more: the first backward passes from one line show what there is to see,
# unless one line serves several networks, each with an optimizer of its own.
WALKS_PER_SITE = 12

Key = tuple[str, int, str | None]


class Reach:
    """By the line of the backward and the model that was called before it."""

    def __init__(
        self,
        emitter: Emitter,
        objects: Objects,
        window: Window,
        owners: Owners,
        graph: LossGraph,
    ) -> None:
        self._emitter = emitter
        self._objects = objects
        self._window = window
        self._owners = owners
        self._graph = graph
        self._walks: dict[Key, int] = {}
        self._sets: dict[Key, int] = {}
        self._several: set[Key] = set()  # lines that reach now these, now those
        self._half: dict[int, bool] = {}

    def half(self, number: int | None) -> bool | None:
        """Whether some of these parameters are float16."""
        return (self._half.get(number) or None) if number is not None else None

    def parameters(self, loss: Tensor, where: Place) -> int | None:
        """As a set number; walks the graph while that is news."""
        key = (where.at.path, where.at.line, self._last())
        walks = self._walks.get(key, 0)
        if walks >= WALKS_PER_SITE and key not in self._several:
            return self._sets.get(key)
        self._walks[key] = walks + 1
        self._graph.look(loss, where.at)
        leaves, marks, whole = reached(loss, MARK)
        for mark in marks:
            mark.event.used = True
        held = sorted((leaf for leaf in leaves if self._objects.is_trained(leaf)), key=id)
        all_trained = len(held) == len(leaves)
        held = self._objects.as_stepped(held)
        if not all_trained:
            at, callers = spot(where)
            self._emitter.emit(GradRead(at, callers=callers, what="input"))
        if not whole:
            self._sets.pop(key, None)
            return None
        number = self._objects.parameters(held)
        if self._sets.setdefault(key, number) != number and len(self._objects.optimizers()) > 1:
            self._several.add(key)
        self._sets[key] = number
        self._owners.reached(held, self._model(), self._teachers())
        self._half[number] = any(leaf.dtype is torch.float16 for leaf in held)
        return number if self._objects.members(number) else None

    def _model(self) -> nn.Module | None:
        """The model that was called last."""
        last = self._last()
        return next((m for n, m in self._objects.models() if n == last), None)

    def _last(self) -> str | None:
        return self._window.forwards[-1].model if self._window.forwards else None

    def _teachers(self) -> set[str]:
        """Models that ran in eval mode."""
        return {f.model for f in self._window.forwards if f.model and f.training is False}
