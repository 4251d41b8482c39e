"""Updates that nobody watches: their steps are counted, and the guard still looks at them.

It looks at one small gradient, and now and then at all of them, as often as its part of the budget allows. On an accelerator it looks
before every step.
"""

from __future__ import annotations

from collections.abc import Callable
from math import isfinite
from time import perf_counter
from types import CodeType
from typing import Any

from torch import Tensor
from torch.optim import Optimizer

from fallline.runs.update import UpdateRow
from fallline.taps.frames import caller
from fallline.taps.gradients import gradient_of
from fallline.taps.tap import Call
from fallline.watcher.fuse import Fuse, GuardStop
from fallline.watcher.guard import Guard
from fallline.watcher.known import Known
from fallline.watcher.later import sent_numbers
from fallline.watcher.log import EventLog
from fallline.watcher.pace import MOST_REST
from fallline.watcher.progress import Progress
from fallline.watcher.recording import Recording
from fallline.watcher.scalers import Scalers

__all__ = ["Rest"]

TAPS_SECONDS = 2e-6  # of an update at rest
# Of the budget of an update: for looks at one gradient, and at all of them.
FOR_ONE, FOR_ALL = 0.6, 0.2
TIMED = (
    16  # one of so many looks at one gradient is timed: two looks at the clock take a quarter of it
)
FEW_ELEMENTS = 64  # are read faster as a list than summed up by torch
OVERDUE = 256  # steps at which a rest ends wherever they are made


class Rest:
    """`before` and `after` each step, from the taps."""

    def __init__(
        self,
        known: dict[int, Known],
        log: EventLog,
        progress: Progress,
        scalers: Scalers,
        guard: Guard,
        recording: Recording,
        fuse: Fuse,
    ) -> None:
        self._known = known
        self._log = log
        self._progress = progress
        self._scalers = scalers
        self._guard = guard
        self._recording = recording
        self._fuse = fuse
        self._over: Callable[[], None] | None = None
        self._left = 0  # updates
        self._site: tuple[int, CodeType, int] | None = None
        self._made: dict[int, int] = {}  # by id of the optimizer: its steps
        self._probe: Tensor | None = None
        self._probed = self._looked = 0.0  # seconds that a look at one gradient takes, and at all
        self._one = self._all = 1  # every so many updates
        self._until_one = self._until_all = 0
        self._looks = -1
        self._lists = False  # the one gradient is small enough to be read as a list

    def begin(
        self, call: Call, optimizer: Optimizer, left: int, budget: float, over: Callable[[], None]
    ) -> None:
        """After this step, for so many updates. `budget`: seconds of an update. `over` is called when the rest is."""
        frame = call.frame
        self._site = (id(optimizer), frame.f_code, frame.f_lasti)
        self._left, self._over = left, over
        self._ration(optimizer, budget)

    def _ration(self, optimizer: Optimizer, budget: float) -> None:
        """How often the guard looks: on an accelerator always."""
        known = self._known[id(optimizer)]
        self._probe, self._looked = self._guard.probe(optimizer, known.held)
        if known.on_device or len(self._known) > 1:
            self._probe = None
        if self._probe is not None:
            self._lists = self._probe.dim() == 1 and self._probe.numel() <= FEW_ELEMENTS
        self._one = 1 + int(self._probed / (FOR_ONE * budget)) if budget else MOST_REST
        self._all = 1
        if self._probe is not None:
            self._all = 1 + int(self._looked / (FOR_ALL * budget)) if budget else MOST_REST
        elif not known.on_device and budget:
            self._all = 1 + int(self._looked / (FOR_ONE * budget))
        self._until_one = self._until_all = 0

    @property
    def seconds(self) -> float:
        """Of ours, in an update that is not watched."""
        return TAPS_SECONDS + self._probed / self._one + self._looked / self._all

    def settle(self) -> None:
        """Count the steps that were made."""
        counts, progress = self._progress.counts, self._progress
        for number, made in self._made.items():
            known = self._known.get(number)
            if known is not None:
                counts[known.name] = counts.get(known.name, 0) + made
            progress.steps += made
            self._log.updates += made
        self._made.clear()

    def before(self, optimizer: Optimizer) -> None:
        """A step is about to be made."""
        self._until_all -= 1
        if self._until_all > 0:
            self._until_one -= 1
            if self._until_one > 0 or self._probe is None:
                return
            self._until_one = self._one
            if self._timed():
                return
        self._until_all = self._all
        self._look(optimizer)

    def _timed(self) -> bool:
        """Whether the one small gradient is finite; now and then also how long it takes to find out."""
        self._looks += 1
        if self._looks % TIMED:
            return self._fine()
        started = perf_counter()
        fine = self._fine()
        took = perf_counter() - started
        self._probed = min(took, 2 * self._probed) if self._probed else took
        return fine

    def _fine(self) -> bool:
        gradient = gradient_of(self._probe)
        if gradient is None:
            return True
        return isfinite(sum(gradient.tolist()) if self._lists else gradient.sum().item())

    def _look(self, optimizer: Optimizer) -> None:
        known = self._known.get(id(optimizer))
        if known is None or self._scalers.any or self._fuse.off:
            return
        made = self._made.get(id(optimizer), 0)
        try:
            index = self._progress.counts.get(known.name, 0) + made
            self._guard.look(optimizer, index, known.held)
        except GuardStop:
            raise
        except Exception as error:
            self._fuse.fail(error)

    def after(self, optimizer: Optimizer) -> None:
        """A step was made."""
        number = id(optimizer)
        self._made[number] = self._made.get(number, 0) + 1
        self._left -= 1
        if self._guard.holds:
            self._let_go(optimizer)
        if self._left <= 0 and (number not in self._known or self._due(optimizer)):
            assert self._over is not None
            self._over()
        elif number not in self._known or self._fuse.off:
            self._left = 0  # one that was never stepped while we watched

    def _let_go(self, optimizer: Optimizer) -> None:
        """All gradients were looked at."""
        guard = self._guard
        flag, known = guard.flag, self._known[id(optimizer)]
        made = self._made.get(id(optimizer), 1)
        index = self._progress.counts.get(known.name, 0) + made - 1
        held_back = guard.release(optimizer)
        if flag is not None:
            guard.sent(index, known.held, sent_numbers([flag])[0], None)
        if held_back:
            self._recording.open().update(UpdateRow(index, known.name, skipped=True))
            self._left = 0

    def _due(self, optimizer: Optimizer) -> bool:
        frame = caller()
        here: Any = (id(optimizer), frame.f_code, frame.f_lasti)
        return here == self._site or self._left < -OVERDUE
