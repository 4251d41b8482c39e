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

_SAME_LOSS = 0.9  # of the parameters are reached by both: batches of one loss, not two losses


class Holding(Observer):
    """From one update on, every step is undone and every backward's own gradient is kept."""

    def __init__(self, after: int, wanted: int) -> None:
        self.after = after
        self.wanted = wanted
        self.gradients = Gradients()
        self.samples: int | None = None
        self.sizes: set[int] = set()
        self.others = 0  # backwards of another loss: a critic's beside an actor's
        self._reached: set[int] = set()  # parameters, by the loss whose noise is measured
        self.world = 1
        self._done = 0
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

    def batch_ends(self, iterator: Any, batch: Any) -> None:
        self._size(batch)

    def forward_begins(self, model: Any, args: Any, kwargs: Any) -> None:
        if self.samples is None and torch.is_grad_enabled():
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
        parameters = self.parameters()
        if not self._reached:  # the script's first: no gradient was there before
            self._reached = {i for i, p in enumerate(parameters) if p.grad is not None}
        if not self._before:
            return
        reached = {i for i, p in enumerate(parameters) if p.grad is not None}
        if len(reached & self._reached) >= _SAME_LOSS * len(reached | self._reached):
            # an expert that a batch left out has no gradient, and counts as zero
            self.gradients.add(
                [
                    torch.zeros_like(p) if p.grad is None else p.grad
                    for i, p in enumerate(parameters)
                    if i in self._reached
                ]
            )
        else:
            self.others += 1
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


def run_holding(script: Script, holding: Holding, progress: Progress | None) -> Ran:
    """Run it until all gradients are there: at the latest after as many updates more."""
    return run_until(script, holding, updates=holding.after + holding.wanted, progress=progress)
