"""Running statistics that change while their model is in eval mode.

On a CPU their values are compared. On a device that would wait for it: there the version that torch counts in each tensor has to do, which
operations of torch's own BatchNorm do not change.
"""

from __future__ import annotations

import re

import torch
from torch import Tensor, nn

from fallline.location import Location
from fallline.watcher.observed import Observed
from fallline.watcher.progress import Progress

__all__ = ["RunningStatistics"]

_STATISTIC = re.compile(r"(^|\.)(running_|ema_|moving_)|num_batches_tracked|_avg$|cluster_size")
_MOST = 64
_LARGEST = 4_096


class RunningStatistics:
    """Around the forward passes of models in eval mode, while these are recorded."""

    def __init__(self, progress: Progress, observed: Observed) -> None:
        self._progress = progress
        self._observed = observed
        self._before: list[tuple[str, Tensor, Tensor | int]] = []

    def begins(self, module: nn.Module) -> None:
        """A forward pass in eval mode begins."""
        named = [(n, b) for n, b in module.named_buffers() if _STATISTIC.search(n)]
        self._before = [(name, buffer, _state(buffer)) for name, buffer in named[:_MOST]]

    def ends(self, at: Location) -> None:
        before, self._before = self._before, []
        moved = next((name for name, buffer, state in before if _changed(buffer, state)), None)
        if moved is not None and "FL810" not in self._observed.codes:
            self._observed.add("FL810", at, {"buffer": moved, "step": self._progress.steps})


def _state(buffer: Tensor) -> Tensor | int:
    small = buffer.is_cpu and buffer.numel() <= _LARGEST
    return buffer.detach().clone() if small else buffer._version


def _changed(buffer: Tensor, state: Tensor | int) -> bool:
    if isinstance(state, Tensor):
        return not torch.equal(buffer, state)
    return buffer._version != state
