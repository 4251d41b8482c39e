"""How far two runs may be apart without anything having changed.

Kernels that sum in a different order each time give results that differ in the last bits. Training then carries the two runs apart:
smoothly, and the faster the larger the learning rate. So noise is known by where it begins, at the rounding of the number format, and
by how it grows, without a jump. A repeat of one of the runs measures it instead, and then nothing is presumed about its growth.
"""

from __future__ import annotations

import math
import statistics
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, NamedTuple

__all__ = ["EPSILON", "Curve", "Judged", "Noise", "envelope", "gaps", "judge", "judge_together"]

Curve = Mapping[int, float]  # update → value
Bound = Callable[[int], float]  # update → the largest gap that noise explains

EPSILON = {
    "float64": 2.0**-52, "float32": 2.0**-23, "tf32": 2.0**-10, "float16": 2.0**-10, "bfloat16": 2.0**-7,
    "float8_e4m3fn": 2.0**-3, "float8_e5m2": 2.0**-2,
}  # fmt: skip
# A loss is a sum of many rounded numbers, whose errors add up in float32 and average out in the shorter formats.
_SUMMED = {"float64": 2.0**12, "float32": 2.0**6}
_SHORT = 0.125
# Gaps are sizes of random numbers: a few small ones in a row say little about the next.
_JUMP, _JUMP_FIRST = 25.0, 100.0
_WILD = 0.125  # power of what the runs have come apart by already: training that carries them far also jumps further
_STRETCH = (
    16  # updates over which growth is measured: shorter ones show single gaps, which are random
)
_MOST_GROWN = 50.0  # e-fold, over updates that were not recorded: more than any gap can grow
_REPEATED = 8.0  # times what a repeat shows
_AHEAD = 8  # updates: runs go apart a little sooner or later
_FLOOR_OF_LOSS = 0.05  # of the first losses: below this a loss is small because its terms cancel


@dataclass
class Noise:
    """What the gaps between two curves show."""

    format: str = "float32"
    floor: float = 0.0  # the rounding of that format in a loss
    measured: bool = False  # by a repeat
    compared: int = 0  # updates
    onset: int | None = None  # the first update with any gap at all
    first: float = 0.0  # the gap there
    largest: float = 0.0
    jump: int | None = None  # the first update with a gap that noise does not explain
    allowed: float = 0.0  # there

    @property
    def identical(self) -> bool:
        return self.onset is None

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def floor_of(format: str) -> float:
    """The gap that rounding alone makes between two losses."""
    return EPSILON[format] * _SUMMED.get(format, _SHORT)


def gaps(a: Curve, b: Curve) -> dict[int, float]:
    """How far two curves are apart at each update that both have, against their size."""
    common = sorted(a.keys() & b.keys())
    early = [abs(a[u]) for u in common[:16] if math.isfinite(a[u])]
    smallest = _FLOOR_OF_LOSS * statistics.median(early) if early else 0.0
    return {u: _gap(a[u], b[u], smallest) for u in common}


def _gap(a: float, b: float, smallest: float) -> float:
    if a == b or (a != a and b != b):
        return 0.0
    if not (math.isfinite(a) and math.isfinite(b)):
        return math.inf
    return abs(a - b) / max(abs(a), abs(b), smallest)


def envelope(repeats: Iterable[Mapping[int, float]]) -> Bound:
    """What repeats of one run show: the largest gap up to a few updates later."""
    largest: dict[int, float] = {}
    for found in repeats:
        for update, gap in found.items():
            largest[update] = max(largest.get(update, 0.0), gap)
    updates, running, bounds = sorted(largest), 0.0, {}
    for update in updates:
        running = max(running, largest[update])
        bounds[update] = running
    last = running

    def bound(update: int) -> float:
        return _REPEATED * next((bounds[u] for u in range(update + _AHEAD, -1, -1) if u in bounds), last)  # fmt: skip

    return bound


class Judged(NamedTuple):
    """One curve: its gaps, what a repeat shows of them, and how much more than a loss it rounds."""

    gaps: Mapping[int, float]
    bound: Bound | None = None
    room: float = 1.0
    flips: float = 0.0  # what it may jump by once the runs are not the same bit for bit


def judge(found: Mapping[int, float], format: str, bound: Bound | None = None, room: float = 1.0) -> Noise:  # fmt: skip
    """The first gap of one curve that is a jump. `room`: how many times more the quantity rounds than a loss does."""
    return judge_together([Judged(found, bound, room)], format)[0]


def judge_together(curves: list[Judged], format: str) -> list[Noise]:
    """The first jump of each of several curves of one run.

    What carries one curve apart carries the others: a gap is a jump against the largest of all of them so far.
    """
    answers = [
        Noise(format, c.room * floor_of(format), c.bound is not None, len(c.gaps)) for c in curves
    ]
    drift = _Drift()
    for update in sorted({u for curve in curves for u in curve.gaps}):
        jump = drift.allowed(update)
        sizes = []
        for noise, curve in zip(answers, curves, strict=True):
            gap = curve.gaps.get(update, 0.0)
            own = max(curve.room * jump, curve.flips if jump else 0.0)
            _note(noise, update, gap, curve.bound(update) if curve.bound is not None else own)
            sizes.append(gap / curve.room)
        drift.note(update, max(sizes))
    return answers


@dataclass
class _Drift:
    """How far the runs have come apart so far."""

    highest: float = 0.0
    first: float = 0.0  # the first gap
    begun: int = 0  # its update
    last: int = 0  # the update that was looked at last
    count: int = 0  # updates with a gap
    fastest: float = (
        0.0  # growth of the logarithm in an update, over the stretch where it was largest
    )
    stretch: deque[tuple[int, float]] = field(default_factory=deque)  # the last updates: how far

    def note(self, update: int, size: float) -> None:
        self.last = update
        if size and not self.count:
            self.first, self.begun = size, update
        self.highest, self.count = max(self.highest, size), self.count + bool(size)
        if self.count and math.isfinite(self.highest):
            self._grow(update)

    def _grow(self, update: int) -> None:
        self.stretch.append((update, self.highest))
        while len(self.stretch) > 1 and self.stretch[1][0] <= update - _STRETCH:
            self.stretch.popleft()
        then, size = self.stretch[0]
        if update - then >= _STRETCH:
            self.fastest = max(self.fastest, math.log(self.highest / size) / (update - then))

    def allowed(self, update: int) -> float:
        """The largest gap that noise explains here.

        Updates that were not recorded have carried the runs on: as fast as those before them did where these were fastest, because
        training is unstable in some places and not in others.
        """
        if not self.count or not math.isfinite(self.highest):
            return self.highest
        apart = self.highest / self.first
        passed, unseen = self.last - self.begun, max(0, update - self.last - 1)
        rate = max(self.fastest, math.log(apart) / passed) if passed else 0.0
        grown = math.exp(min(rate * unseen, _MOST_GROWN))
        return (_JUMP + _JUMP_FIRST / self.count) * math.pow(apart, _WILD) * grown * self.highest


def _note(noise: Noise, update: int, gap: float, allowed: float) -> None:
    allowed = max(noise.floor, allowed)
    if gap and noise.onset is None:
        noise.onset, noise.first = update, gap
    if gap > allowed and noise.jump is None:
        noise.jump, noise.allowed = update, allowed
    noise.largest = max(noise.largest, gap)
