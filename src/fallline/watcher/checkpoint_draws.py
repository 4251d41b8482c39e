"""Checkpointed blocks that draw random numbers and are recomputed without the state in which they began."""

from __future__ import annotations

import torch

from fallline.replay.randomness import State, state_now
from fallline.taps.modes import CHECKPOINT, CheckpointCall
from fallline.taps.tap import Subscription
from fallline.watcher.fuse import Fuse
from fallline.watcher.observed import Observed
from fallline.watcher.progress import Progress

__all__ = ["CheckpointDraws"]

LOOKS = 8  # at blocks from one line: dropout draws in the first of them


class CheckpointDraws:
    """Only where `preserve_rng_state=False` was given: all other blocks get the same random numbers again."""

    def __init__(self, progress: Progress, observed: Observed) -> None:
        self._progress = progress
        self._observed = observed
        self._looks: dict[tuple[str, int], int] = {}
        self._begun: tuple[CheckpointCall, State] | None = None

    def subscribe(self, taps: Subscription, fuse: Fuse) -> None:
        taps.before(CHECKPOINT, fuse.guarded(self._begins))
        taps.after(CHECKPOINT, fuse.guarded(self._ends))

    def _begins(self, call: CheckpointCall) -> None:
        self._begun = None
        if call.options.get("preserve_rng_state", True) or not torch.is_grad_enabled():
            return
        if torch.cuda.is_available() and torch.cuda.is_current_stream_capturing():
            return
        where = call.place
        if where is None:
            return
        key = (where.at.path, where.at.line)
        self._looks[key] = self._looks.get(key, 0) + 1
        if self._looks[key] <= LOOKS:
            self._begun = (call, state_now())

    def _ends(self, call: CheckpointCall) -> None:
        begun, self._begun = self._begun, None
        if begun is None or begun[0] is not call or _same(begun[1], state_now()):
            return
        where = call.place
        if where is not None:
            self._looks[where.at.path, where.at.line] = LOOKS  # once is enough
            self._observed.add("FL407", where.at, {"step": self._progress.steps})


def _same(before: State, now: State) -> bool:
    (cpu, devices), (cpu_now, devices_now) = before, now
    return torch.equal(cpu, cpu_now) and all(map(torch.equal, devices, devices_now))
