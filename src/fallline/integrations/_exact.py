"""The engine's arithmetic inside a framework's own accumulation: divide once, by what was really accumulated on all ranks."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from fallline.engine.gradients import local
from fallline.engine.replicas import Replicas
from fallline.engine.window import Window
from fallline.integrations.watch import current

__all__ = ["ExactWindow"]


class ExactWindow:
    """The micro-batches of one update that a framework accumulates, each loss divided by the same number."""

    def __init__(self, models: Sequence[nn.Module], device: torch.device) -> None:
        self._replicas = Replicas(models)
        self._window = Window(self._replicas, device)
        self._device = device
        self._reference = 1.0

    def add(self, mean_over: float | Tensor | None) -> float | Tensor | None:
        """One more micro-batch. What its loss, a mean over so many things, has to be multiplied with; None: nothing.

        Relative to the first one's number, so that the loss scale of float16 stays where it is.
        """
        weight = self._window.check(mean_over)
        self._window.add(weight, mean_over is not None)
        if mean_over is None:
            return None
        if (session := current()) is not None:
            session.weigh_next()  # the means are weighed after all
        if self._reference == 1.0:  # waits for the device, once in a run
            largest = float(weight)
            if self._replicas.size > 1:
                largest = self._replicas.largest(largest, self._device)
            self._reference = max(largest, 2.0)
        return weight / self._reference

    def complete(self, parameters: Iterable[Any], divided_by: int) -> None:
        """All gradients are there, synchronised: make them those of the one big batch. `divided_by`: what the framework did.

        A full window without weights has a factor of 1 and keeps its bits.
        """
        window = self._window
        if window.count == 0:
            return
        reference = self._reference if window.weighted else 1.0
        window.start_total()
        factor = window.factor() * divided_by * reference
        window.clear()
        if isinstance(factor, float) and factor == 1.0:
            return
        held = [p.grad for p in parameters if p.grad is not None]
        if held:
            torch._foreach_mul_(local(held), factor)
