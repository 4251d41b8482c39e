"""Gradients of a script's micro-batches at one point: it trains on, and its steps change nothing."""

from __future__ import annotations

import os
from typing import Any

import torch
from torch import Tensor

from fallline.instruments.clip.noise import Gradients, samples_in
from fallline.instruments.frame import Progress
from fallline.instruments.script import Observer, Ran, Script, run_until

__all__ = ["Holding", "run_holding"]


class Holding(Observer):
    """From one update on, every step is undone and every backward's own gradient is kept."""

    def __init__(self, after: int, wanted: int, progress: Progress | None) -> None:
        self.after = after
        self.wanted = wanted
        self.gradients = Gradients()
        self.samples: int | None = None
        self.sizes: set[int] = set()
        self.world = 1
        self._done = 0
        self._progress = progress
        self._optimizers: list[Any] = []
        self._before: list[Tensor | None] = []
        self._kept: list[tuple[Tensor, Tensor]] = []

    @property
    def holds(self) -> bool:
        return self._done >= self.after and self.gradients.count < self.wanted

    def optimizer_made(self, optimizer: Any) -> None:
        self._optimizers.append(optimizer)

    def parameters(self) -> list[Tensor]:
        seen = {id(p): p for o in self._optimizers for g in o.param_groups for p in g["params"]}
        return list(seen.values())

    def update_ends(self, number: int) -> None:
        self._done = number
        if self._progress is not None:
            self._progress.advance(number, "updates")

    def batch_ends(self, iterator: Any, batch: Any) -> None:
        self._size(batch)

    def forward_begins(self, model: Any, args: Any, kwargs: Any) -> None:
        if self.samples is None:
            self._size((args, kwargs))
        if isinstance(model, torch.nn.parallel.DistributedDataParallel):
            self.world = int(os.environ.get("WORLD_SIZE", "1"))

    def _size(self, batch: Any) -> None:
        size = samples_in(batch)
        if size is not None:
            self.samples = self.samples or size
            if self.holds:
                self.sizes.add(size)

    def backward_begins(self, loss: Any) -> None:
        """Gradients add up in `.grad`: for once it starts empty, so that what is there afterwards is this backward's alone."""
        if self.holds:
            parameters = self.parameters()
            self._before = [p.grad for p in parameters]
            for parameter in parameters:
                parameter.grad = None

    def backward_ends(self) -> None:
        if not self._before:
            return
        parameters = self.parameters()
        self.gradients.add([p.grad for p in parameters])
        with torch.no_grad():
            for parameter, before in zip(parameters, self._before, strict=True):
                if before is not None:
                    if parameter.grad is not None:
                        before.add_(parameter.grad)
                    parameter.grad = before
        self._before = []

    def step_begins(self, optimizer: Any) -> None:
        if self._done >= self.after:
            self._kept = [
                (p, p.detach().clone()) for g in optimizer.param_groups for p in g["params"]
            ]

    def step_ends(self, optimizer: Any) -> None:
        with torch.no_grad():
            for parameter, value in self._kept:
                parameter.copy_(value)
        self._kept = []


def run_holding(script: Script, holding: Holding) -> Ran:
    """Run it until all gradients are there: at the latest after as many updates more."""
    return run_until(script, holding, updates=holding.after + holding.wanted)
