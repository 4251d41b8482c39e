"""How many updates are watched, so that watching stays within its budget also where an update takes a millisecond.

The first updates are all watched. When a fixed allowance is used up, stretches of watched updates and stretches at rest take
turns. How long an update takes in each is measured, and their difference, all taps included, is what watching costs; so many
updates are watched as the budget pays for. At rest the taps let everything pass, and the guard looks at one small gradient, and
now and then at all of them, as often as its part of the budget allows.

What is seen is one sequence without gaps, as far as rules can tell: a rest ends behind the very call of `step` that it began behind.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from math import isfinite
from statistics import median
from time import perf_counter
from types import CodeType
from typing import Any

from torch import Tensor
from torch.optim import Optimizer

from fallline.runs.update import UpdateRow
from fallline.taps.frames import caller
from fallline.taps.gradients import gradient_of
from fallline.taps.tap import Call, switch
from fallline.watcher.emit import Emitter
from fallline.watcher.fuse import Fuse, GuardStop
from fallline.watcher.guard import Guard
from fallline.watcher.known import Known
from fallline.watcher.later import sent_numbers
from fallline.watcher.log import EventLog
from fallline.watcher.progress import Draft, Progress
from fallline.watcher.recording import Recording
from fallline.watcher.scalers import Scalers
from fallline.watcher.window import Window

__all__ = ["Duty"]

ALLOWANCE = 0.3  # seconds, before the budget counts
# What an update costs that is recorded in full, and one that is compared, until it is measured.
RECORDED, COMPARED = 0.8e-3, 0.15e-3
STRETCH = 32  # updates in a row, at least
FIRST_REST = 64
MOST_REST = 4_096
MEASURED_AGAIN = 2_048  # updates, where watching costs no more than it may
REMEMBERED = 5  # stretches
ENOUGH = 16  # updates, to say how long one takes
AT_REST = 3e-6  # seconds of an update at rest that no look takes: the taps
# Of the budget of an update at rest: for looks at one gradient, at all of them, and at least for watching.
FOR_ONE, FOR_ALL, FOR_WATCHING = 1.0, 0.2, 0.3
OVERDUE = 256  # steps at which a rest ends wherever they are made


class Duty:
    """`stepped` after each update that was watched. `before` and `after` each step at rest, from the taps."""

    def __init__(
        self,
        budget: float,
        known: dict[int, Known],
        emitter: Emitter,
        log: EventLog,
        progress: Progress,
        draft: Draft,
        window: Window,
        scalers: Scalers,
        guard: Guard,
        recording: Recording,
        fuse: Fuse,
        awaits: Callable[[], int | None],
    ) -> None:
        """`awaits`: in how many updates one comes that somebody has to see."""
        self._budget = budget
        self._known = known
        self._emitter = emitter
        self._log = log
        self._progress = progress
        self._draft = draft
        self._window = window
        self._scalers = scalers
        self._guard = guard
        self._recording = recording
        self._fuse = fuse
        self._awaits = awaits
        self.rests = False
        self._spent = 0.0
        self._left = 1  # updates of this stretch
        self._began: float | None = None
        self._first = 0  # steps before it
        self._watched: deque[float] = deque(maxlen=REMEMBERED)  # seconds of an update
        self._rested: deque[float] = deque(maxlen=REMEMBERED)
        self._site: tuple[int, CodeType, int] | None = None
        self._next = STRETCH  # updates to watch after the rest
        self._made: dict[int, int] = {}  # by id of the optimizer: its steps at rest
        self._probe: Tensor | None = None
        self._probed = self._looked = 0.0  # seconds that a look at one gradient takes, and at all
        self._one = self._all = 1  # every so many updates
        self._until_one = self._until_all = 0
        self._clock = time.thread_time
        self._awaited: int | None = None  # in how many updates somebody has to see one

    # -- watched -----------------------------------------------------------------------------------------------

    def stepped(self, call: Call, optimizer: Optimizer, compared: bool, closure: bool) -> None:
        """An update was watched."""
        self._spent += COMPARED if compared else RECORDED
        if self._spent < ALLOWANCE:
            return
        self._left -= 1
        if self._left <= 0 and not closure and self._recording.world == 1:
            self._turn(call, optimizer, compared)

    def _turn(self, call: Call, optimizer: Optimizer, compared: bool) -> None:
        """The end of a watched stretch."""
        known = self._known.get(id(optimizer))
        if known is None:
            return
        if self._began is None:
            self._clock = time.perf_counter if known.on_device else time.thread_time
            self._begin(STRETCH)
            return
        self._watched.append(self._seconds())
        watched, rest = self._plan(compared)
        left = self._awaits()
        if left is not None:
            if rest and left < STRETCH and left != self._awaited:  # it comes first
                self._awaited = left
                self._left = max(left, 0) + STRETCH
                self._watched.pop()
                return
            if left >= STRETCH:  # else its optimizer has come to an end
                rest = min(rest, left - 1)
        if rest:
            self._rest(call, optimizer, watched, rest)
        else:
            self._watched.clear()
            self._rested.clear()
            self._began, self._left = None, watched

    def _plan(self, compared: bool) -> tuple[int, int]:
        """How many updates are watched from now on, and how many are not."""
        update = median(self._watched)
        if not self._rested:
            costs = COMPARED if compared else RECORDED
            if costs <= self._budget * update:
                return MEASURED_AGAIN, 0
            return STRETCH, FIRST_REST
        bare = median(self._rested)
        budget = self._budget * bare
        costs, may = update - bare, max(budget - self._spent_at_rest(), FOR_WATCHING * budget)
        if costs <= may:
            return MEASURED_AGAIN, 0
        share = may / costs
        if share > 0.5:
            return int(STRETCH * share / (1 - share)), STRETCH
        return STRETCH, min(int(STRETCH * (1 - share) / max(share, 1e-9)), MOST_REST)

    def _spent_at_rest(self) -> float:
        """Seconds of an update that is not watched."""
        return AT_REST + self._probed / self._one + self._looked / self._all

    def _begin(self, left: int) -> None:
        self._left, self._began, self._first = left, self._clock(), self._progress.steps

    def _seconds(self) -> float:
        """That an update of this stretch has taken."""
        assert self._began is not None
        return (self._clock() - self._began) / max(self._progress.steps - self._first, 1)

    # -- at rest -----------------------------------------------------------------------------------------------

    def _rest(self, call: Call, optimizer: Optimizer, watched: int, rest: int) -> None:
        for forward in self._window.forwards:
            if forward.used is None:
                forward.used = True  # the backward that walks it will not be seen
        frame = call.frame
        self._site = (id(optimizer), frame.f_code, frame.f_lasti)
        self._next = watched
        self._ration(optimizer)
        self.rests = self._guard.resting = self._emitter.muted = True
        switch.rest(self)
        self._begin(rest)

    def _ration(self, optimizer: Optimizer) -> None:
        """How often the guard looks at rest: on an accelerator always."""
        known = self._known[id(optimizer)]
        self._probe, self._looked = self._guard.probe(optimizer, known.held)
        if known.on_device or len(self._known) > 1:
            self._probe = None
        budget = self._budget * median(self._rested or self._watched)
        self._one = 1 + int(self._probed / (FOR_ONE * budget)) if budget else MOST_REST
        self._all = 1
        if self._probe is not None:
            self._all = 1 + int(self._looked / (FOR_ALL * budget)) if budget else MOST_REST
        elif not known.on_device and budget:
            self._all = 1 + int(self._looked / (FOR_ONE * budget))
        self._until_one = self._until_all = 0

    def _settle(self) -> None:
        """Count the steps that were made at rest."""
        counts, progress = self._progress.counts, self._progress
        for number, made in self._made.items():
            known = self._known.get(number)
            if known is not None:
                counts[known.name] = counts.get(known.name, 0) + made
            progress.steps += made
            self._log.updates += made
        self._made.clear()

    def wake(self) -> None:
        """Watch from here on."""
        if not self.rests:
            return
        self._settle()
        if self._progress.steps - self._first >= ENOUGH:
            self._rested.append(self._seconds())
        self.stop()
        self._draft.resume(time.perf_counter())
        self._begin(self._next)

    def stop(self) -> None:
        """The taps publish everything again."""
        if self.rests:
            self._settle()
            self.rests = self._guard.resting = self._emitter.muted = False
            switch.rest(None)

    def before(self, optimizer: Optimizer) -> None:
        """A step is about to be made."""
        self._until_all -= 1
        if self._until_all > 0:
            self._until_one -= 1
            if self._until_one > 0 or self._probe is None:
                return
            self._until_one = self._one
            started = perf_counter()
            gradient = gradient_of(self._probe)
            fine = gradient is None or isfinite(gradient.sum().item())
            took = perf_counter() - started
            self._probed = min(took, 2 * self._probed) if self._probed else took
            if fine:
                return
        self._until_all = self._all
        self._look(optimizer)

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
            self.wake()
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
