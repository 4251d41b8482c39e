"""How much of a run's time may go into looking at its numbers.

`--budget` is for all of the watcher. The taps of an update take about the same time whatever the model; what is left is
shared out among the samples of `Numbers` and the whole looks of the `Guard`. Steps too short to leave anything still
get a few microseconds each, so that tiny models are not blind.
"""

from __future__ import annotations

__all__ = ["AIMED_AT", "FLOOR_SECONDS", "SHARE", "left_for_looks"]

TAPS_SECONDS = 180e-6  # of an update with one micro-batch: benchmarks/watch.py
FLOOR_SECONDS = 5e-6
SHARE = 0.3  # of what is left, for each of the two
AIMED_AT = 0.6  # of the budget: what watching takes of the caches and of the interpreter is not seen while it runs


def left_for_looks(budget: float, seconds: float) -> float:
    """Of the budget of an update that takes so long."""
    return max(budget * seconds - TAPS_SECONDS, 0.0)
