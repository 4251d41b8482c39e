"""How many updates are watched, so that watching stays within its budget also where an update takes a millisecond.

The first updates are all watched. When a fixed allowance is used up, stretches of watched updates and stretches at rest take
turns. `Pace` measures how long an update takes in each; their difference, all taps included, is what watching costs, and so many
updates are watched as the budget pays for, which pays for the first ones too. At rest the taps let everything pass but steps, which
`Rest` counts.

What is seen is one sequence without gaps, as far as rules can tell: a rest ends behind the very call of `step` that it began behind.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from torch.optim import Optimizer

from fallline.taps.tap import Call, switch
from fallline.watcher.emit import Emitter
from fallline.watcher.guard import Guard
from fallline.watcher.known import Known
from fallline.watcher.pace import STRETCH, Pace, guess
from fallline.watcher.progress import Draft
from fallline.watcher.rest import Rest
from fallline.watcher.window import Window

__all__ = ["Duty"]

ALLOWANCE = 0.09  # seconds, before there are rests: it is paid back later
AROUND = 8  # updates that are watched for one that somebody has to see


class Duty:
    """`stepped` after each update that was watched, which may begin a rest; `wake` ends it."""

    def __init__(
        self,
        known: dict[int, Known],
        emitter: Emitter,
        draft: Draft,
        window: Window,
        guard: Guard,
        pace: Pace,
        rest: Rest,
        awaits: Callable[[], int | None],
    ) -> None:
        """`awaits`: in how many steps one comes that somebody has to see."""
        self._known = known
        self._emitter = emitter
        self._draft = draft
        self._window = window
        self._guard = guard
        self._pace = pace
        self._rest = rest
        self._awaits = awaits
        self.rests = False
        self._began = False
        self._spent = 0.0
        self._left = 1  # updates of this watched stretch
        self._next = STRETCH  # updates to watch after the rest

    def stepped(self, call: Call, optimizer: Optimizer, compared: bool, closure: bool) -> None:
        """An update was watched."""
        known = self._known.get(id(optimizer))
        costs = guess(compared=compared, on_device=known is not None and known.on_device)
        if not self._began:
            self._began = True
            self._pace.starts()
        self._spent += costs
        if self._spent < ALLOWANCE:
            return
        self._left -= 1
        if self._left <= 0 and not closure and known is not None:
            self._turn(call, optimizer, known, costs)

    def _turn(self, call: Call, optimizer: Optimizer, known: Known, costs: float) -> None:
        """The end of a watched stretch."""
        pace = self._pace
        if not pace.measures:
            pace.begin(on_device=known.on_device)
            self._left = STRETCH
            return
        watched, rest = pace.after_watching(costs, self._rest.seconds)
        left = self._awaits() if rest else None
        if left is not None and left <= rest:
            if left <= AROUND:  # it comes first
                self._left = max(left, 0) + AROUND
                pace.forget_last()
                return
            rest, watched = left - 1, AROUND
        if rest:
            self._begin_rest(call, optimizer, watched, rest)
        else:
            pace.end()
            self._left = watched

    def _begin_rest(self, call: Call, optimizer: Optimizer, watched: int, rest: int) -> None:
        for forward in self._window.forwards:
            if forward.used is None:
                forward.used = True  # the backward that walks it will not be seen
        self._next = watched
        self._rest.begin(call, optimizer, rest, self._pace.budget_of_update, self.wake)
        self.rests = self._guard.resting = self._emitter.muted = True
        switch.rest(self._rest)
        self._pace.begin()

    def wake(self) -> None:
        """Watch from here on."""
        if not self.rests:
            return
        self.stop()
        self._pace.after_resting()
        self._draft.resume(time.perf_counter())
        self._pace.begin()
        self._left = self._next if self._rest.complete else STRETCH

    def stop(self) -> None:
        """The taps publish everything again."""
        if self.rests:
            self._rest.settle()
            self.rests = self._guard.resting = self._emitter.muted = False
            switch.rest(None)
