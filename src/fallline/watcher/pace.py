"""How long an update takes, watched and at rest, and so how many of each the budget pays for."""

from __future__ import annotations

import time
from collections import deque
from statistics import median

from fallline.watcher.progress import Progress

__all__ = ["COMPARED", "FIRST_REST", "MOST_REST", "RECORDED", "STRETCH", "Pace"]

# What an update costs that is recorded in full, and one that is compared, until it is measured.
RECORDED, COMPARED = 0.8e-3, 0.15e-3
STRETCH = 32  # updates in a row, at least
FIRST_REST = 64
MOST_REST = 8_192
MEASURED_AGAIN = 2_048  # updates, where watching costs no more than it may
REMEMBERED = 5  # stretches
ENOUGH = 16  # updates, to say how long one takes
FOR_WATCHING = 0.3  # of the budget, at least, however much the looks at rest take


class Pace:
    """Of one process. A stretch is measured from `begin` to `after_watching` or `after_resting`."""

    def __init__(self, budget: float, progress: Progress) -> None:
        self._budget = budget
        self._progress = progress
        self._clock = time.thread_time
        self._began: float | None = None
        self._first = 0  # steps before this stretch
        self._watched: deque[float] = deque(maxlen=REMEMBERED)  # seconds of an update
        self._rested: deque[float] = deque(maxlen=REMEMBERED)

    @property
    def measures(self) -> bool:
        """A stretch has begun."""
        return self._began is not None

    @property
    def budget_of_update(self) -> float:
        """Seconds."""
        return self._budget * median(self._rested or self._watched)

    def begin(self, *, on_device: bool | None = None) -> None:
        """A stretch. `on_device`: the host's thread only waits for a device, so the clock on the wall counts."""
        if on_device is not None:
            self._clock = time.perf_counter if on_device else time.thread_time
        self._began, self._first = self._clock(), self._progress.steps

    def end(self) -> None:
        """Every update is watched from here on, and not measured."""
        self._watched.clear()
        self._rested.clear()
        self._began = None

    def after_watching(self, compared: bool, at_rest: float) -> tuple[int, int]:
        """How many updates are watched from now on, and how many are not. `at_rest`: seconds that one of those takes of ours."""
        self._watched.append(self._seconds())
        update = median(self._watched)
        if not self._rested:
            costs = COMPARED if compared else RECORDED
            if costs <= self._budget * update:
                return MEASURED_AGAIN, 0
            return STRETCH, FIRST_REST
        bare = median(self._rested)
        budget = self._budget * bare
        costs, may = update - bare, max(budget - at_rest, FOR_WATCHING * budget)
        if costs <= may:
            return MEASURED_AGAIN, 0
        share = may / costs
        if share > 0.5:
            return int(STRETCH * share / (1 - share)), STRETCH
        return STRETCH, min(int(STRETCH * (1 - share) / max(share, 1e-9)), MOST_REST)

    def forget_last(self) -> None:
        """The watched stretch that was measured last is not over yet."""
        self._watched.pop()

    def after_resting(self) -> None:
        if self._progress.steps - self._first >= ENOUGH:
            self._rested.append(self._seconds())

    def _seconds(self) -> float:
        """That an update of this stretch has taken."""
        assert self._began is not None
        return (self._clock() - self._began) / max(self._progress.steps - self._first, 1)
