"""What there is to draw, before it is drawn: `plot` draws it with characters for a terminal."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise

from fallline.show.axis import Axis

__all__ = ["Bars", "Lines"]

Point = tuple[float, float]


@dataclass(frozen=True, slots=True)
class Lines:
    """Curves over one axis. What is not finite is left out."""

    curves: Mapping[str, list[Point]]
    x: Axis
    y: Axis
    names: tuple[str, str]  # of the axes

    def at(self, name: str, share: float) -> float | None:
        """Where the curve is, 0 to 1 upwards, at this share of the horizontal axis; None where it is not."""
        placed = [(self.x.place(x), self.y.place(y)) for x, y in self.curves[name]]
        for (x0, y0), (x1, y1) in pairwise(placed):
            if x0 <= share <= x1:
                return y0 + (y1 - y0) * ((share - x0) / (x1 - x0) if x1 > x0 else 0.0)
        return placed[0][1] if len(placed) == 1 and abs(placed[0][0] - share) < 0.02 else None


@dataclass(frozen=True, slots=True)
class Bars:
    """One quantity, for each side that has it."""

    quantity: str
    values: Mapping[str, float]
    axis: Axis
