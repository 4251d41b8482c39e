"""What there is to draw of an outcome, before it is drawn: lines where it has curves, else one bar for each side.

`plot` draws it with characters for a terminal, `figure` as SVG for a page.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from fallline.proof.record import Outcome
from fallline.show.axis import Axis
from fallline.show.picture import Bars, Lines

__all__ = ["picture"]

Point = tuple[float, float]


def picture(outcome: Outcome) -> Lines | Bars | None:
    """The picture of an outcome; None where it has no two numbers to compare."""
    curves = {
        name: [(x, y) for x, y in zip(_positions(outcome, len(ys)), ys, strict=False)
               if y is not None and math.isfinite(y)]
        for name, ys in outcome.curves.items()
    }  # fmt: skip
    curves = {name: points for name, points in curves.items() if points}
    if curves and max(len(points) for points in curves.values()) > 1:
        return _lines(curves, (outcome.axes[0], outcome.axes[1]))
    return _bars(outcome)


def _positions(outcome: Outcome, length: int) -> list[float]:
    return list(outcome.positions) or [float(x) for x in range(length)]


def _lines(curves: dict[str, list[Point]], names: tuple[str, str]) -> Lines:
    xs = [x for points in curves.values() for x, _ in points]
    low, high = min(xs), max(xs)
    # 1, 10, 100: steps that multiply want an axis that does
    grows = low > 0 and high / low >= 30 and sorted(set(xs))[1] / low > 1.5
    return Lines(
        curves,
        Axis(low, high if high > low else low + 1, grows),
        Axis.over([y for points in curves.values() for _, y in points], None, False),
        names,
    )


def _bars(outcome: Outcome) -> Bars | None:
    quantities = [q for values in outcome.sides.values() for q in values]
    best: Bars | None = None
    for quantity in dict.fromkeys(quantities):
        values = {
            side: float(found[quantity])
            for side, found in outcome.sides.items()
            if _is_number(found.get(quantity))
        }
        low, high = min(values.values(), default=0.0), max(values.values(), default=0.0)
        if high - low > 0.01 * max(abs(low), abs(high)):  # two bars of one length show nothing
            found = Bars(quantity, values, _from_zero(values))
            if best is None or len(values) > len(best.values):
                best = found
    return best


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _from_zero(values: Mapping[str, float]) -> Axis:
    """Bars start at zero, except where they would all be invisible beside the largest."""
    low, high = min(values.values()), max(values.values())
    if low > 0 and high / low > 100:
        return Axis(10.0 ** (math.floor(math.log10(low)) - 1), high, True)
    return Axis(min(low, 0.0), max(high, 0.0), False)
