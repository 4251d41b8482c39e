"""Trains a script up to one of its updates, and hands its micro-batch over where its backward would begin.

torch is not imported here before the script does it: it may have something to set first.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

from fallline.instruments.frame import Progress
from fallline.instruments.script import NothingMeasured, Observer, Ran, Script, run_until

if TYPE_CHECKING:
    from torch import nn

    from fallline.instruments.micro_batch import MicroBatch
    from fallline.replay.capture import Capture

__all__ = ["measure_micro_batch"]

_MOST_CALLS = 64
Found = TypeVar("Found")


def measure_micro_batch(
    script: Script, measure: Callable[[MicroBatch], Found], *, update: int
) -> tuple[Found, Ran]:
    """Train up to this update, and hand its first micro-batch to `measure` where its backward would begin."""
    observer = _AtBackward(measure, update)
    with Progress("training up to update", total=update) as progress:
        ran = run_until(script, observer, updates=update, progress=progress)
    if not observer.found:
        if ran.interrupted:
            raise KeyboardInterrupt
        raise NothingMeasured(ran, f"before the backward of update {update}")
    return observer.found[0], ran


class _AtBackward(Observer):
    def __init__(self, measure: Callable[[MicroBatch], Any], update: int) -> None:
        self.measure = measure
        self.wanted = update
        self.done = 0
        self.capture: Capture | None = None
        self.random: dict[str, Any] = {}
        self.found: list[Any] = []

    @property
    def now(self) -> bool:
        return self.done == self.wanted - 1 and not self.found

    def update_ends(self, number: int) -> None:
        self.done = number

    def forward_begins(self, model: nn.Module, args: Any, kwargs: Any) -> None:
        if not self.now:
            return
        import torch

        if not torch.is_grad_enabled() and (self.capture is None or self.capture.over):
            return  # acting, or a target: what comes to a backward begins later
        from fallline.engine import rng
        from fallline.instruments.micro_batch import device_of
        from fallline.replay.capture import Capture

        if self.capture is None or self.capture.over:
            self.capture, self.random = Capture(None), rng.capture()
        if len(self.capture.calls) < _MOST_CALLS:
            device = device_of(list(model.parameters()))
            self.capture.add(model, args, kwargs, device, sys._getframe())

    def backward_begins(self, loss: Any) -> None:
        if not self.now or self.capture is None:
            return
        from fallline.instruments.micro_batch import MicroBatch

        self.capture.end(sys._getframe())
        self.found.append(self.measure(MicroBatch(self.capture, self.random)))
        self.capture = None
