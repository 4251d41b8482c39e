"""Charts as plain HTML and SVG, drawn here so that the page needs no script and no network.

The SVG holds only lines and areas and is stretched to any width; all text is HTML at its normal size, so a chart reads
as well at 400 pixels as at 1280.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from html import escape
from typing import Any

from fallline.show.axis import Axis
from fallline.show.numbers import number

__all__ = ["Area", "Chart", "Line", "Mark", "extremes", "running_median"]

POINTS = 600  # per line; more cannot be seen
LABEL = 0.18  # of a narrow chart's width, that the code of a finding takes
LEFT_FROM = 1 - LABEL  # from here on a label is to the left of its line
Point = tuple[float, float]


def extremes(points: Sequence[Point], limit: int = POINTS) -> list[Point]:
    """At most `limit` points that keep the smallest and the largest of every stretch, so that no spike is lost."""
    if len(points) <= limit:
        return list(points)
    kept: list[Point] = []
    buckets = limit // 2
    for bucket in range(buckets):
        stretch = points[len(points) * bucket // buckets : len(points) * (bucket + 1) // buckets]
        low, high = min(stretch, key=_y), max(stretch, key=_y)
        kept += [low] if low == high else sorted((low, high))
    return kept


def _y(point: Point) -> float:
    return point[1]


def running_median(points: Sequence[Point], parts: int = 60) -> list[Point]:
    """The course of a noisy series: one median for each of `parts` stretches."""
    size = max(1, len(points) // parts)
    course = []
    for start in range(0, len(points), size):
        stretch = points[start : start + size]
        middle = sorted(y for _, y in stretch)[len(stretch) // 2]
        course.append((sum(x for x, _ in stretch) / len(stretch), middle))
    return course


@dataclass(slots=True)
class Line:
    """One line of a chart. `colour` is the name of a CSS variable."""

    name: str
    points: Sequence[Point]
    colour: str
    dashed: bool = False
    faint: bool = False
    shown: bool = True  # in the legend and under the pointer


@dataclass(slots=True)
class Area:
    """The space between two lines."""

    name: str
    colour: str
    low: Sequence[Point]
    high: Sequence[Point]


@dataclass(slots=True)
class Mark:
    """A vertical line at one update: a finding, a skipped step."""

    at: float
    label: str = ""
    colour: str = "error"


@dataclass(slots=True)
class Chart:
    """One chart. `y_log` where values span orders of magnitude."""

    title: str
    lines: list[Line] = field(default_factory=list)
    areas: list[Area] = field(default_factory=list)
    marks: list[Mark] = field(default_factory=list)
    note: str = ""
    unit: str = ""
    y_log: bool | None = None  # None: decided by the values
    from_zero: bool = False
    x_name: str = "update"
    x_labels: Sequence[str] = ()  # under the x positions 0, 1, 2, ..., instead of numbers

    def html(self) -> str:
        values = [y for line in self.lines for _, y in line.points if math.isfinite(y)]
        values += [y for area in self.areas for part in (area.low, area.high) for _, y in part]
        xs = [x for line in self.lines for x, _ in line.points] or [
            x for a in self.areas for x, _ in a.high
        ]
        if not values or not xs:
            return ""
        y = Axis.over(values, self.y_log, self.from_zero)
        x = Axis(min(xs), max(xs) if max(xs) > min(xs) else min(xs) + 1, False)
        body = "".join(
            [
                _grid(y),
                *(_area(a, x, y) for a in self.areas),
                *(_line(line, x, y) for line in self.lines),
            ]
        )
        return (
            f'<figure class="chart" data-chart="{escape(_data(self, x, y))}">'
            f"<figcaption><h3>{escape(self.title)}</h3>{_legend(self)}</figcaption>"
            f'<div class="plot"><div class="y-axis" aria-hidden="true">{_y_labels(y, self.unit)}</div>'
            f'<div class="canvas" role="img" aria-label="{escape(_spoken(self, values))}">'
            f'<svg viewBox="0 0 1000 1000" preserveAspectRatio="none" aria-hidden="true">{body}</svg>'
            f"{_marks(self.marks, x)}{_lost(self.lines, x)}"
            '<div class="cursor" hidden></div><div class="tip" hidden></div></div>'
            f'<div class="x-axis{" named" if self.x_labels else ""}" aria-hidden="true">{_x_labels(x, self)}</div></div>'
            + (f'<p class="note">{escape(self.note)}</p>' if self.note else "")
            + "</figure>"
        )


def _grid(y: Axis) -> str:
    lines = "".join(f"M0 {_at(y, t):.0f}H1000" for t in y.ticks(4))
    return f'<path class="grid" d="{lines}"/>'


def _at(y: Axis, value: float) -> float:
    return 1000 * (1 - y.place(value))


def _path(points: Sequence[Point], x: Axis, y: Axis) -> str:
    """Breaks where a value is not finite; one lonely point becomes a short dash that can be seen."""
    runs: list[list[str]] = [[]]
    for px, py in extremes(points):
        if math.isfinite(py):
            runs[-1].append(f"{1000 * x.place(px):.1f} {_at(y, py):.1f}")
        elif runs[-1]:
            runs.append([])
    return "".join(f"M{'L'.join(run)}" if len(run) > 1 else f"M{run[0]}h4" for run in runs if run)


def _line(line: Line, x: Axis, y: Axis) -> str:
    looks = " ".join(
        name for name, on in (("line", True), ("dashed", line.dashed), ("faint", line.faint)) if on
    )
    return f'<path class="{looks}" style="stroke:var(--{line.colour})" d="{_path(line.points, x, y)}"/>'


def _area(area: Area, x: Axis, y: Axis) -> str:
    forth = "L".join(f"{1000 * x.place(px):.1f} {_at(y, py):.1f}" for px, py in area.high)
    back = "L".join(f"{1000 * x.place(px):.1f} {_at(y, py):.1f}" for px, py in reversed(area.low))
    return f'<path class="area" style="fill:var(--{area.colour})" d="M{forth}L{back}Z"/>'


def _marks(marks: Sequence[Mark], x: Axis) -> str:
    """Labels that would lie on each other stand one below the other."""
    drawn, rows = [], _rows([x.place(m.at) for m in marks if m.label])
    for mark in marks:
        row = next(rows) if mark.label else 0
        if not x.low <= mark.at <= x.high:
            continue
        place = x.place(mark.at)
        side = " class=left" if place > LEFT_FROM else ""
        label = f'<b{side} style="top:{14 * row - 2}px">{escape(mark.label)}</b>'
        drawn.append(
            f'<i class="mark" style="left:{100 * place:.2f}%;--c:var(--{mark.colour})">'
            f"{label if mark.label else ''}</i>"
        )
    return "".join(drawn)


def _rows(places: Sequence[float]) -> Iterator[int]:
    """For each label in turn the first row in which it is free of those before it."""
    taken: list[list[float]] = []
    for place in places:
        begin = place - LABEL if place > LEFT_FROM else place
        row = next(
            (r for r, others in enumerate(taken) if all(abs(begin - o) >= LABEL for o in others)),
            len(taken),
        )
        if row == len(taken):
            taken.append([])
        taken[row].append(begin)
        yield row


def _lost(lines: Sequence[Line], x: Axis) -> str:
    """A tick at the bottom for each value that is not finite, a few dozen at most."""
    lost = sorted(
        {px for line in lines if line.shown for px, py in line.points if not math.isfinite(py)}
    )
    shown = lost[:: max(1, len(lost) // 60)]
    return "".join(
        f'<i class="lost" title="not finite" style="left:{100 * x.place(px):.2f}%"></i>'
        for px in shown
    )


def _y_labels(y: Axis, unit: str) -> str:
    return "".join(
        f'<span style="top:{100 * (1 - y.place(t)):.2f}%">{escape(number(t) + unit)}</span>'
        for t in y.ticks(4)
    )


def _x_labels(x: Axis, chart: Chart) -> str:
    if chart.x_labels:
        last = max(1, len(chart.x_labels) - 1)
        spots = sorted({0, last // 2, last})
        shown = [(float(k), chart.x_labels[min(k, len(chart.x_labels) - 1)]) for k in spots]
    else:
        shown = [(t, number(t)) for t in x.ticks(5) if t == int(t) and x.place(t) < 0.88]
        shown.append((x.high, number(x.high)))
    spans = "".join(
        f'<span class="{"first" if x.place(k) < 0.04 else "last" if x.place(k) > 0.9 else ""}" '
        f'style="left:{100 * x.place(k):.2f}%">{escape(label)}</span>'
        for k, label in shown
    )
    return f"{spans}<em>{escape(chart.x_name)}</em>"


def _legend(chart: Chart) -> str:
    named = [(line.name, line.colour, line.dashed) for line in chart.lines if line.shown]
    named += [(area.name, area.colour, False) for area in chart.areas if area.name]
    if len(named) < 2:
        return ""
    keys = "".join(
        f'<span><i class="key{" dashed" if dashed else ""}" style="--c:var(--{colour})"></i>{escape(name)}</span>'
        for name, colour, dashed in named
    )
    return f'<span class="legend">{keys}</span>'


def _spoken(chart: Chart, values: Sequence[float]) -> str:
    """What a screen reader says instead of the picture."""
    return f"{chart.title}: from {number(min(values))} to {number(max(values))}{chart.unit}"


def _data(chart: Chart, x: Axis, y: Axis) -> str:
    """What the script needs to show values under the pointer."""
    import json

    def pairs(points: Sequence[Point]) -> list[list[Any]]:
        return [
            [_round(px), _round(py) if math.isfinite(py) else None] for px, py in extremes(points)
        ]

    lines = [
        {"n": line.name, "c": line.colour, "p": pairs(line.points)}
        for line in chart.lines
        if line.shown
    ]
    return json.dumps(
        {"x": [x.low, x.high], "y": [y.low, y.high, int(y.log)], "u": chart.unit, "xn": chart.x_name,
         "xl": list(chart.x_labels), "l": lines},
        separators=(",", ":"),
    )  # fmt: skip


def _round(value: float) -> float:
    return float(f"{value:.4g}") if value != int(value) else int(value)
