"""The axis of a picture, drawn or in characters."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

__all__ = ["Axis"]

_LARGEST = 307  # powers of ten: a loss that diverges goes to the end of what a float holds


@dataclass(frozen=True, slots=True)
class Axis:
    """From a value to its place along the axis, and back to the round numbers that label it."""

    low: float
    high: float
    log: bool

    @classmethod
    def over(cls, values: Sequence[float], log: bool | None, from_zero: bool) -> Axis:
        low, high = min(values), max(values)
        positive = [v for v in values if v > 0]
        if log is None:
            log = low > 0 and high / low > 50
        if log and positive:
            low, high = min(positive), max(positive)
            room = max((math.log10(high) - math.log10(low)) * 0.06, 0.03)
            top = 10.0 ** min(math.log10(high) + room, _LARGEST)
            return cls(10.0 ** min(math.log10(low) - room, _LARGEST - 1), top, True)
        end = 10.0**_LARGEST
        low, high = (max(-end, min(value, end)) for value in (low, high))
        room = (high - low) * 0.06 or abs(high) * 0.1 or 1.0
        bottom = 0.0 if from_zero and low >= 0 else low - room
        return cls(bottom, high + room, False)

    def place(self, value: float) -> float:
        """0 at the low end, 1 at the high end."""
        if self.log:
            value = math.log10(max(value, self.low))
            return (value - math.log10(self.low)) / (math.log10(self.high) - math.log10(self.low))
        return (value - self.low) / (self.high - self.low)

    def ticks(self, most: int) -> list[float]:
        if self.log:
            first, last = math.ceil(math.log10(self.low)), math.floor(math.log10(self.high))
            if last - first >= 1:
                stride = max(1, math.ceil((last - first + 1) / most))
                return [10.0**k for k in range(first, last + 1, stride)]
        raw = (self.high - self.low) / most
        size = 10.0 ** math.floor(math.log10(raw))
        step = next(size * m for m in (1, 2, 2.5, 5, 10) if size * m >= raw)
        lowest, highest = math.ceil(self.low / step - 1e-9), math.floor(self.high / step + 1e-9)
        return [k * step for k in range(lowest, highest + 1)]
