"""One self-contained page about two runs: the verdict, what differs, and both curves over each other."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from html import escape
from pathlib import Path

from fallline._version import __version__
from fallline.diff import Comparison, Difference
from fallline.report.charts import Chart, Line, Mark
from fallline.report.diff import headline, noise_text, run_line
from fallline.report.html_style import SCRIPT, STYLE
from fallline.report.written import write_text
from fallline.runs.noise import gaps
from fallline.runs.series import Series, Track

__all__ = ["page", "write_page"]

Course = Callable[[Track], list[tuple[int, float]]]


def write_page(a: Series, b: Series, found: Comparison, target: Path) -> Path:
    """The page as a file, whole or not at all."""
    return write_text(page(a, b, found), target)


def page(a: Series, b: Series, found: Comparison) -> str:
    title = " and ".join(run.folder.name if run.folder is not None else "run" for run in (a, b))
    runs = "".join(
        f'<p class="facts"><b>{name}</b> {escape(run_line(run))}</p>'
        for name, run in (("A", a), ("B", b))
    )
    colour = "good" if found.same else "error"
    body = (
        f'<p class="brand">fallline · two runs</p><header><h1>{escape(title)}</h1></header>{runs}'
        f'<div class="verdict" style="--c:var(--{colour})"><strong>{"Same" if found.same else "Different"}</strong>'
        f"<span>{escape(headline(found))}</span></div>"
        f"{_differences(found)}{_charts(a, b, found)}{_notes(found)}"
        f"<footer>Written by fallline {escape(__version__)} on {time.strftime('%Y-%m-%d %H:%M')}.</footer>"
    )
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width,initial-scale=1">'
        f'<meta name="generator" content="fallline {escape(__version__)}"><title>{escape(title)} · fallline</title>'
        f'<link rel="icon" href="data:,"><style>{STYLE}</style></head><body><main>{body}</main>'
        f"<script>{SCRIPT}</script></body></html>\n"
    )


def _differences(found: Comparison) -> str:
    if not found.differences:
        return ""
    cards = "".join(_card(d, found.same) for d in found.differences)
    return f"<h2>What differs, first cause first</h2>{cards}"


def _card(difference: Difference, same: bool) -> str:
    colour = "info" if same else "error" if difference.kind == "numbers" else "warning"
    where = [f"update {difference.update}" if difference.update is not None else ""]
    where.append(difference.module or "")
    place = " · ".join(part for part in where if part)
    return (
        f'<article class="finding" style="--c:var(--{colour})"><div>'
        f'<h3><span class="code">{escape(difference.kind.replace("-", " "))}</span><span class="name">{escape(place)}</span></h3>'
        f'<p class="message">{escape(difference.what)}</p></div></article>'
    )


def _notes(found: Comparison) -> str:
    lines = [noise_text(found), f"the same: {', '.join(found.agrees)}" if found.agrees else ""]
    shown = "".join(f'<p class="facts">{escape(line)}</p>' for line in [*lines, *found.notes] if line)  # fmt: skip
    return f"<h2>Also</h2>{shown}" if shown else ""


# -- curves ------------------------------------------------------------------------------------------------------


def _charts(a: Series, b: Series, found: Comparison) -> str:
    drawn = []
    names = [t.optimizer for t in a.of_rank(a.ranks[0].number)]
    for name in names[:2]:
        ours, theirs = _track(a, name), _track(b, name)
        if ours is not None and theirs is not None:
            drawn += _of_pair(ours, theirs, found)
    html = "".join(chart.html() for chart in drawn)
    return f'<h2>Both curves</h2><div class="charts">{html}</div>' if html else ""


def _track(run: Series, name: str) -> Track | None:
    return next((t for t in run.of_rank(run.ranks[0].number) if t.optimizer == name), None)


def _of_pair(ours: Track, theirs: Track, found: Comparison) -> list[Chart]:
    first = next((d for d in found.differences if d.update is not None), None)
    marks = [Mark(float(first.update or 0), first.kind.replace("-", " "), "error")] if first else []
    courses: tuple[tuple[str, Course, str], ...] = (
        ("Loss", Track.losses, "loss"),
        ("Gradient norm", Track.norms, "norm"),
        ("Learning rate", _rates, "rate"),
    )
    charts = [
        Chart(
            title,
            [
                Line("A", _points(course(ours)), colour),
                Line("B", _points(course(theirs)), "clip", dashed=True),
            ],
            marks=marks if title == "Loss" else [],
        )
        for title, course, colour in courses
    ]
    return [charts[0], _gap_chart(ours, theirs), *charts[1:]]


def _rates(track: Track) -> list[tuple[int, float]]:
    return [(r.index, r.lr) for r in track.rows if r.lr is not None]


def _points(course: list[tuple[int, float]]) -> list[tuple[float, float]]:
    return [(float(update), value) for update, value in course]


def _gap_chart(ours: Track, theirs: Track) -> Chart:
    """On a scale of powers of ten: noise grows along a line, a change is a step."""
    found = gaps(dict(ours.losses()), dict(theirs.losses()))
    points = [(float(u), gap) for u, gap in found.items() if 0 < gap < math.inf]
    note = "" if points else "The losses are the same bit for bit."
    line = Line("gap", points or [(float(u), 0.0) for u in found], "other")
    return Chart(
        "Gap between the losses, against their size",
        [line],
        note=note
        or "Noise begins at the rounding of the number format and grows smoothly; a change is a step.",
        y_log=bool(points),
    )
