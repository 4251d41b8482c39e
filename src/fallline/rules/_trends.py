"""Robust questions to a series of numbers. Medians throughout: one bad batch must not decide anything."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

__all__ = [
    "Progress",
    "finite",
    "median",
    "progress",
    "quantile",
    "sensitivity",
    "spread",
    "update_ratio",
    "warming",
]


def finite(values: Sequence[float | None]) -> list[float]:
    return [v for v in values if v is not None and math.isfinite(v)]


def quantile(values: Sequence[float], share: float) -> float:
    """The value below which this share of the values lies; NaN for none."""
    if not values:
        return math.nan
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


def median(values: Sequence[float]) -> float:
    return quantile(values, 0.5)


def spread(values: Sequence[float]) -> float:
    """Like a standard deviation, but blind to outliers."""
    if not values:
        return math.nan
    middle = median(values)
    return 1.4826 * median([abs(v - middle) for v in values])


@dataclass(frozen=True, slots=True)
class Progress:
    """How a loss changed from the beginning of a series to its end."""

    before: float
    after: float
    noise: float  # spread from one value to the next
    certainty: float  # the fall in standard errors; negative when it rose
    error: float = math.nan  # standard error of the fall

    @property
    def fall(self) -> float:
        """As a share of the loss itself, or of its noise where the loss is around zero."""
        scale = max(abs(self.before), self.noise)
        return (self.before - self.after) / scale if scale else 0.0

    def fell(self, share: float) -> bool:
        """Whether it fell by at least this share, beyond noise."""
        return self.fall >= share and self.certainty >= 2.0


def progress(losses: Sequence[float], part: float = 0.1) -> Progress:
    """Compare the first part with the last, by default a tenth (at least three values each)."""
    values = finite(losses)
    if len(values) < 6:
        return Progress(math.nan, math.nan, math.nan, 0.0)
    size = max(3, min(int(len(values) * part), 2000))
    before, after = median(values[:size]), median(values[-size:])
    steps = [abs(b - a) for a, b in pairwise(values)]
    noise = (
        median(steps) / 0.954
    )  # the median step between two normal values is 0.954 of their deviation
    error = noise * math.sqrt(2 * 1.57 / size)  # of the difference of two medians
    drop = before - after
    certainty = drop / error if error else math.copysign(math.inf, drop) if drop else 0.0
    return Progress(before, after, noise, certainty, error)


def sensitivity(sample: Any, loss: float) -> float:
    """By what share of itself the loss would change, to first order, if the weights changed by their own size."""
    weights = math.sqrt(sum(w * w for w in sample.column("weight") if w == w))
    return float(sample.total_norm() * weights / abs(loss)) if loss else math.inf


def update_ratio(sample: Any, *, vectors: bool = False) -> float | None:
    """What an update changed, as a share of the weights: the middle of the matrices, because vectors start at zero and grow from there.

    `vectors`: those count where there are no matrices.
    """
    columns = zip(
        sample.layout.parameters, sample.column("ratio"), sample.column("norm"), strict=True
    )
    known = [(p, r) for p, r, norm in columns if r == r and norm > 0]
    ratios = [r for p, r in known if len(p.shape) >= 2]
    if vectors and not ratios:
        ratios = [r for p, r in known if p.count > 1]
    return median(ratios) if ratios else None


def warming(track: Any) -> bool:
    """Whether the learning rate is still on its way up."""
    rates = [r.lr for r in track.rows if r.lr is not None][-200:]
    return len(rates) >= 2 and rates[-1] > rates[0]
