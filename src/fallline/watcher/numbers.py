"""Per-parameter numbers of an update, within a budget, without making the training thread wait for a device.

`Numbers` belongs to one optimizer. Around its step:

    numbers.before_step(index, scale=...)     # gradients are complete; the weights are still the old ones
    ...the step...
    row.sample = numbers.after_step()         # None when this update is not sampled
    row.fingerprint = numbers.fingerprint(index)   # None when no fingerprint is due

A sample costs a few passes over the gradients. How often one is taken adapts so that the measured cost stays
within `budget` (a share of the time between steps) or, for very short steps, within a small fixed allowance.
"""

from __future__ import annotations

import time
from array import array
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor

from fallline.watcher.samples import COLUMNS, Layout, ParameterInfo, Sample

__all__ = ["Numbers", "describe_parameters", "gradient_sample"]

# Seconds that may be spent per update even when the budget is smaller: keeps tiny models observable.
FLOOR_SECONDS = 100e-6
# Seconds that may be spent at the start, where most mistakes show: the first updates are sampled densely.
HEAD_START_SECONDS = 0.05
# Elements per parameter that stand for it in weight norms, update ratios and fingerprints.
PROBE = 1024
# Fingerprints are taken before updates 0, 1, 2, 4, 8, ... and then every this many, on all ranks alike.
FINGERPRINT_EVERY = 1024
SMALLEST_NORMAL_HALF = 2.0**-14


def describe_parameters(model: torch.nn.Module) -> dict[int, ParameterInfo]:
    """id(parameter) → what people call it, for every parameter of a model."""
    owners = {name: type(module).__name__ for name, module in model.named_modules()}
    return {
        id(p): ParameterInfo(name, owners.get(name.rpartition(".")[0], ""), depth, tuple(p.shape), str(p.dtype)[6:])
        for depth, (name, p) in enumerate(model.named_parameters())
    }


class Numbers:
    """Samples the gradients and updates of the parameters of one optimizer."""

    def __init__(
        self,
        named: Iterable[tuple[ParameterInfo, Tensor]],
        budget: float = 0.01,
        *,
        half: bool = False,
    ) -> None:
        self.budget = budget
        self.half = half  # float16 in play: also look for values that underflow
        self._credit = HEAD_START_SECONDS
        self._cost = 0.0  # seconds of the last sample
        self._last = 0.0  # when the last update ended
        self._spent = 0.0  # seconds spent on the update in progress
        self._layouts = 0
        self._pending: _Probe | None = None
        self._sampled = False
        self.refresh(named)

    def refresh(self, named: Iterable[tuple[ParameterInfo, Tensor]]) -> None:
        """The optimizer's parameters, again: some were added."""
        pairs = list(named)
        self.parameters = [p for _, p in pairs]
        self.layout = Layout(self._layouts, [info for info, _ in pairs])
        self._layouts += 1

    def before_step(self, index: int, scale: float = 1.0, scaled: bool = False) -> None:
        """Gradients are complete. `scale`: the loss scale of the backward; `scaled`: they still carry it."""
        raise NotImplementedError

    def after_step(self) -> Sample | None:
        raise NotImplementedError

    def fingerprint(self, index: int) -> Any:
        raise NotImplementedError
