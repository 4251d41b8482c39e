"""How often the guard looks at all gradients of an update on a CPU, and at which few of them before the other steps.

Several ranks have to decide alike, whether they watch or rest: there the number of the update says so, and no clock.
"""

from __future__ import annotations

import time

import torch
from torch import Tensor

from fallline.watcher.budget import FLOOR_SECONDS, SHARE, left_for_looks
from fallline.watcher.finite import Plan
from fallline.watcher.recording import Recording

__all__ = ["ALIKE", "Ration", "few_of", "until_all"]

# Elements and tensors: a pass over so few is too short to ration.
ALWAYS_BELOW = 65_536
ALWAYS_TENSORS = 64
ALWAYS_WITHIN = 0.5  # of what is left of the budget
FIRST = 32  # passes that are made before they are rationed
FEW = 2
MOST_RESTS = 1_000
SMALL = 4_096  # elements
ALIKE = 16  # with several ranks: before one update of so many all of them are looked at


class Ration:
    """Of one process."""

    def __init__(self, budget: float, recording: Recording) -> None:
        self._budget = budget
        self._recording = recording
        self._last = time.process_time()
        self.rested = 0  # steps since then

    def spares(self, plan: Plan, index: int) -> bool:
        """Whether a few gradients have to do before this update."""
        if self._recording.world > 1:
            return bool(plan.few) and until_all(index) > 0
        if plan.rests <= 0:
            return False
        plan.rests -= 1
        self.rested += 1
        return True

    def rests(self, plan: Plan, started: float) -> int:
        """All gradients were looked at, which began when this thread had had so many seconds: before how many steps from now on a few have to do.

        What other programs take of the machine earns nothing.
        """
        now, steps = time.process_time(), self.rested + 1
        took, plan.looks = time.thread_time() - started, plan.looks + 1
        if plan.looks <= 8:  # one of the first may have loaded code, any may have been interrupted
            plan.seconds = min(took, plan.seconds or took)
        else:
            plan.seconds += 0.1 * (min(took, 2 * plan.seconds) - plan.seconds)
        update = (now - self._last) / steps  # how long one takes
        self._last, self.rested = now, 0
        if self._recording.world > 1:
            return int(bool(plan.few))  # the number of the update decides before which ones
        if plan.elements <= ALWAYS_BELOW and plan.count <= ALWAYS_TENSORS:
            return 0
        if plan.looks < FIRST or not plan.few:
            return 0
        left = left_for_looks(self._budget, update)
        if plan.seconds <= ALWAYS_WITHIN * left:
            return 0
        return min(int(plan.seconds / max(SHARE * left, FLOOR_SECONDS)), MOST_RESTS)


def until_all(index: int) -> int:
    """With several ranks: before how many updates from this one on a few gradients have to do."""
    return 0 if index < FIRST else -index % ALIKE


def few_of(optimizer: torch.optim.Optimizer) -> list[tuple[int, int]]:
    """A few small float32 tensors of a CPU, from the first to the last: which of which parameter group."""
    small = [
        (i, j)
        for i, group in enumerate(optimizer.param_groups)
        for j, p in enumerate(group["params"])
        if p.grad is not None
        and p.is_cpu
        and p.numel() <= SMALL
        and p.dtype is torch.float32
        and type(p.grad) is Tensor
        and p.grad.layout is torch.strided
    ]
    step = max(1, -(-(len(small) - 1) // (FEW - 1)))
    return list(dict.fromkeys([*small[::step], *small[-1:]]))
