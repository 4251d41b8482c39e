"""A forked child is most likely a loader's worker, of which nothing is ours to watch until it steps an optimizer."""

from __future__ import annotations

import os
from collections.abc import Callable

from fallline.taps.optimizers import STEP, StepCall
from fallline.taps.tap import Subscription

__all__ = ["Forks"]


class Forks:
    """Which process is watched: the one that began, or a forked child that trains."""

    def __init__(self) -> None:
        self.pid = os.getpid()
        self._asleep: Subscription | None = None

    def sleep(self, steps: Callable[[StepCall], None]) -> None:
        """In a forked child: `steps` is called when it steps an optimizer."""
        self._asleep = Subscription()
        self._asleep.before(STEP, steps)
        self._asleep.start()

    def claim(self) -> None:
        """This child trains: it is a run of its own."""
        self.pid = os.getpid()
        if self._asleep is not None:
            self._asleep.stop()
            self._asleep = None
