"""The window: the micro-batches that make one update, and what they weigh together on all ranks."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from fallline.engine.replicas import Replicas
from fallline.errors import EngineError

__all__ = ["Window"]


class Window:
    """What was really accumulated since the last update.

    Without weights every micro-batch counts 1, its loss being a mean. With weights a micro-batch's loss is a sum over
    `weight` things (tokens, samples), and the update is the mean over all of them, on all ranks.
    """

    __slots__ = (
        "_device",
        "_replicas",
        "_travelling",
        "count",
        "known_total",
        "synchronised",
        "weight",
        "weighted",
    )

    def __init__(self, replicas: Replicas, device: torch.device) -> None:
        self._replicas = replicas
        self._device = device
        self.clear()

    def clear(self) -> None:
        self.count = 0
        self.weight: float | Tensor = 0.0
        self.weighted: bool | None = None  # nobody has said yet
        self.known_total: float | None = (
            None  # micro-batches on all ranks, where `over` knows the loaders' lengths
        )
        self.synchronised = False
        self._travelling: tuple[Tensor, Any] | None = None

    def check(self, weight: float | Tensor | None) -> float | Tensor:
        """The weight to add, or an error that says what is wrong with it. Changes nothing."""
        if self.weighted is not None and self.weighted is not (weight is not None):
            raise EngineError(
                "some micro-batches of this window have a weight and some have none: give all of them backward(loss_sum, weight=n), "
                "or none"
            )
        if weight is None:
            return 1.0
        if isinstance(weight, Tensor):
            if weight.numel() != 1:
                raise EngineError(
                    f"weight has {weight.numel()} elements: give one number, such as mask.sum()"
                )
            if weight.device.type != "cpu":
                return weight.detach()  # stays there: reading it would wait for the device
            weight = weight.item()
        if not weight > 0 or math.isinf(weight):
            raise EngineError(
                f"weight={weight}: a weight is the number of things the loss sums over, and must be above 0; "
                "skip a micro-batch that has none"
            )
        return float(weight)

    def add(self, weight: float | Tensor, weighted: bool) -> None:
        self.count += 1
        self.weighted = weighted
        self.weight = self.weight + weight

    def start_total(self) -> None:
        """Before the last backward: the weight of all ranks travels while the gradients are computed."""
        self.synchronised = True
        if self._replicas.size > 1 and (self.weighted or self.known_total is None):
            self._travelling = self._replicas.start_sum(self.weight, self._device)

    def factor(self) -> float | Tensor:
        """What the accumulated gradients are multiplied with to be the big batch's: divide once, by what was really seen.

        torch has divided the sum over ranks by their number, so it is multiplied back.
        """
        total: float | Tensor = self.weight
        if self._travelling is not None:
            total, work = self._travelling
            work.wait()  # orders the device's queue; on a GPU the host goes on
            total = total[0]
            if total.device.type == "cpu":
                total = float(total)
        elif self._replicas.size > 1 and self.known_total is not None:
            total = self.known_total
        if isinstance(total, Tensor):
            return (self._replicas.size / total.double()).float()
        return self._replicas.size / total
