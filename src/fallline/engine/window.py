"""The window: the micro-batches that make one update, and what they weigh together on all ranks."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from fallline.engine.replicas import Replicas
from fallline.errors import EngineError

__all__ = ["Window", "checked_accumulate"]


def checked_accumulate(value: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise EngineError(
            f"accumulate={value!r}: give the number of micro-batches in one update, 1 or more"
        )
    return value


class Window:
    """What was really accumulated since the last update.

    Without weights every micro-batch counts 1, its loss being a mean. With weights a micro-batch's loss is a sum over
    `weight` things (tokens, samples), and the update is the mean over all of them, on all ranks.
    """

    __slots__ = (
        "_device",
        "_replicas",
        "_travelling",
        "accumulate",
        "began_at",
        "count",
        "idle",
        "known_total",
        "size",
        "synchronised",
        "weight",
        "weighted",
    )

    def __init__(self, replicas: Replicas, device: torch.device, accumulate: int = 1) -> None:
        self._replicas = replicas
        self._device = device
        self.accumulate = checked_accumulate(accumulate)
        self.size = 1  # micro-batches that it is to have: `accumulate` when it began
        self.clear()

    def clear(self) -> None:
        self.count = 0
        self.began_at: int | None = None  # samples of the epoch that were behind when it began
        self.idle = 0  # how many of them had no data, on a rank that ran out
        self.weight: float | Tensor = 0.0
        self.weighted: bool | None = None  # nobody has said yet
        self.known_total: float | None = (
            None  # micro-batches on all ranks, where `over` knows the loaders' lengths
        )
        self.synchronised = False
        self._travelling: tuple[Tensor, Any] | None = None

    def next_size(self) -> int:
        """Micro-batches of the window that is open, or of the next one: `accumulate` counts from a window's beginning."""
        return self.size if self.count else self.accumulate

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
        if not weight >= 0 or math.isinf(weight):
            raise EngineError(
                f"weight={weight}: a weight is the number of things the loss sums over, 0 or more"
            )
        return float(weight)

    def add(self, weight: float | Tensor, weighted: bool, idle: bool = False) -> None:
        self.count += 1
        self.idle += idle
        self.weighted = weighted
        self.weight = self.weight + weight

    def start_total(self) -> None:
        """Before the last backward: the weight of all ranks travels while the gradients are computed."""
        self.synchronised = True
        if self._replicas.size > 1 and (self.weighted or self.known_total is None):
            self._travelling = self._replicas.start_sum(self.weight, self._device)

    def factor(self) -> float | Tensor:
        """What the accumulated gradients are multiplied with to be the big batch's: divide once, by what was really seen.

        torch has divided the sum over ranks by `divisor`, so it is multiplied back. NaN where nothing was seen at all (every
        micro-batch had weight 0): there is no such update.
        """
        total: float | Tensor = self.weight
        divisor = 1.0
        if self._replicas.size > 1:
            divisor = self._replicas.divisor()
        if self._travelling is not None:
            total = self._replicas.finish_sum(*self._travelling)[0]
            if total.device.type == "cpu":
                total = float(total)
        elif self._replicas.size > 1 and self.known_total is not None:
            total = self.known_total
        if isinstance(total, Tensor):
            wide = total.double()
            return torch.where(wide > 0, divisor / wide, math.nan).float()
        return divisor / total if total else math.nan
