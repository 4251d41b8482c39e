"""How long an update takes, watched and at rest, and so how many of each the budget pays for.

All that watching costs is a debt: what a watched update takes longer than one at rest, and what our own threads take beside it. Each
update pays its part of the budget back, and nothing is watched before the debt is paid. The first updates are all watched, and what
they cost is known only when some have not been: that debt is paid back beside the others, so that less is watched until it is.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from statistics import median

from fallline.watcher.progress import Progress

__all__ = ["FIRST_REST", "MOST_REST", "STRETCH", "Pace", "guess"]

# What an update costs that is recorded in full, and one that is compared, until it is measured; on an accelerator more is handed out.
RECORDED, COMPARED = 0.8e-3, 0.3e-3
RECORDED_ON_DEVICE, COMPARED_ON_DEVICE = 1.6e-3, 0.6e-3
STRETCH = 32  # updates in a row, at least
FIRST_REST = 64
FIRST_REST_ON_DEVICE = 256  # the host may be many updates ahead of the device
MOST_REST = 8_192  # a debt that is larger than this can pay is forgotten
MEASURED_AGAIN = 2_048  # updates, where watching costs no more than it may
REMEMBERED = 5  # stretches
ENOUGH = 16  # updates, to say how long one takes
FOR_WATCHING = 0.3  # of the budget, at least, however much the looks at rest take
CLEARLY = 0.25  # of the budget: what is guessed to cost less need not be measured
FOR_FIRST = 0.9  # of what an update pays back, while the first ones are not paid
MOST_FIRST = 0.5  # seconds: what they took beyond that was torch's own beginning, most likely


def guess(*, compared: bool, on_device: bool) -> float:
    """Seconds that watching an update takes, as far as that is known before it is measured."""
    if on_device:
        return COMPARED_ON_DEVICE if compared else RECORDED_ON_DEVICE
    return COMPARED if compared else RECORDED


class Pace:
    """Of one process. A stretch is measured from `begin` to `after_watching` or `after_resting`."""

    def __init__(self, budget: float, progress: Progress, beside: Callable[[], float]) -> None:
        """`beside`: seconds that our own threads have taken so far."""
        self._budget = budget
        self._progress = progress
        self._beside = beside
        self._clock = time.thread_time
        self._began: float | None = None
        self._first = 0  # steps before this stretch
        self._watched: deque[float] = deque(maxlen=REMEMBERED)  # seconds of an update
        self._rested: deque[float] = deque(maxlen=REMEMBERED)
        self._may = 0.0  # seconds that an update pays back
        self._start: tuple[float, int] | None = None  # when the first step was made, and its number
        self._first_cost: float | None = None  # seconds that are not paid yet of the first updates
        self._pays_first = 0.0  # seconds that an update pays back of those
        self._owed = (0.0, 0.0)  # seconds that are not paid yet, and those of our threads till then
        self._before = self._owed  # the last watched stretch

    @property
    def measures(self) -> bool:
        """A stretch has begun."""
        return self._began is not None

    @property
    def budget_of_update(self) -> float:
        """Seconds."""
        return self._budget * median(self._rested or self._watched)

    def starts(self) -> None:
        """The first step was made."""
        if self._start is None:
            self._start = (self._clock(), self._progress.steps)

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

    def after_watching(self, guess: float, at_rest: float) -> tuple[int, int]:
        """How many updates are watched from now on, and how many are not.

        `guess`: seconds that watching an update takes, while nothing is measured. `at_rest`: those that one at rest takes of ours.
        """
        self._watched.append(self._seconds())
        self._before = self._owed
        update = median(self._watched)
        if not self._rested:
            if guess <= CLEARLY * self._budget * update:
                return MEASURED_AGAIN, 0
            on_device = self._clock is time.perf_counter
            return STRETCH, FIRST_REST_ON_DEVICE if on_device else FIRST_REST
        bare = median(self._rested)
        budget = self._budget * bare
        may = max(budget - at_rest, FOR_WATCHING * budget)
        steps = self._progress.steps - self._first
        self._pay_first(steps)
        self._pays_first = FOR_FIRST * may if self._first_cost else 0.0
        self._may = may = may - self._pays_first
        over = update - bare - may
        beside = self._beside()
        debt, until = self._owed
        debt += over * steps + beside - until
        self._owed = (min(max(debt, 0.0), MOST_REST * may), beside)
        if over <= 0:
            return MEASURED_AGAIN, 0
        rest = int(self._owed[0] / max(may, 1e-12))
        return (STRETCH, rest) if rest >= STRETCH else (int(STRETCH * may / over), STRETCH)

    def forget_last(self) -> None:
        """The watched stretch that was measured last is not over yet."""
        self._watched.pop()
        self._owed = self._before

    def after_resting(self) -> None:
        steps = self._progress.steps - self._first
        self._owed = (max(self._owed[0] - steps * self._may, 0.0), self._owed[1])
        self._pay_first(steps)
        if steps >= ENOUGH:
            self._rested.append(self._seconds())
            if self._first_cost is None:
                self._first_cost = self._cost_of_first()

    def _cost_of_first(self) -> float:
        """Seconds that all updates until now have taken longer than those at rest do, and our threads, beyond the budget."""
        beside = self._beside()
        self._owed = (self._owed[0], beside)
        if self._start is None or self._clock is not time.thread_time:
            return beside
        began, first = self._start
        bare = (self._progress.steps - first) * self._rested[-1]
        took = min(max(self._clock() - began - bare, 0.0), MOST_FIRST)
        return max(took + beside - self._budget * bare, 0.0)

    def _pay_first(self, steps: int) -> None:
        if self._first_cost:
            self._first_cost = max(self._first_cost - steps * self._pays_first, 0.0)

    def _seconds(self) -> float:
        """That an update of this stretch has taken."""
        assert self._began is not None
        return (self._clock() - self._began) / max(self._progress.steps - self._first, 1)
