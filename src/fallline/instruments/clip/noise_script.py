"""Gradients of a script's micro-batches at one point: it trains on, and its steps change nothing."""

from __future__ import annotations

import os
from typing import Any

import torch
from torch import Tensor

from fallline.errors import UsageError
from fallline.instruments.clip.noise import Gradients, NoiseScale, samples_in
from fallline.instruments.frame import Progress
from fallline.instruments.script import NothingMeasured, Observer, Ran, Script, run_until

__all__ = ["noise_scale_of_script"]

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


def noise_scale_of_script(
    script: Script,
    *,
    updates: int = 10,
    gradients: int = 16,
    batch_size: int | None = None,
    progress: Progress | None = None,
) -> NoiseScale:
    """Train up to this update, then hold the parameters still and take the gradients of the script's next micro-batches."""
    holding = Holding(updates, gradients)
    ran = run_holding(script, holding, progress)
    if holding.gradients.count < 2:
        if ran.interrupted:
            raise KeyboardInterrupt
        raise NothingMeasured(ran, f"before two gradients could be taken after update {updates}")
    size = batch_size or holding.samples
    if size is None:
        raise UsageError(
            "the number of samples in a batch could not be seen (no DataLoader, no tensor given to the model): pass --batch-size"
        )
    found = holding.gradients.estimate(size * holding.world)
    found.update = updates
    found.partial = found.gradients < gradients
    found.status = 130 if ran.interrupted else ran.status
    if holding.others:
        found.notes.append(
            "the script has other losses too, which reach other parameters: these are the gradients of the first that comes"
        )
    if holding.sizes - {size}:
        found.notes.append(
            f"the batches had different sizes ({', '.join(map(str, sorted(holding.sizes)))}): {size} was taken for all"
        )
    return found
