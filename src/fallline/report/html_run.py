"""The pictures of a run: lines over updates, layers over time, gradients by depth, where the time went."""

from __future__ import annotations

import math

from fallline.finding import Finding
from fallline.report.charts import Area, Chart, Line, Mark, Point, running_median
from fallline.report.html_heatmap import heat_map
from fallline.runs.samples import ParameterInfo, Sample
from fallline.runs.series import Series, Track
from fallline.runs.update import UpdateRow
from fallline.show.numbers import seconds_text

__all__ = ["charts", "time_breakdown"]

PARTS = ("data", "forward", "backward", "step", "other")
MAP_ROWS, MAP_COLUMNS = 40, 160


def charts(track: Track, findings: list[Finding]) -> str:
    """Everything about one optimizer on one rank."""
    found = [
        _loss(track, findings),
        _norm(track),
        _rate(track),
        _scale(track),
        _memory(track),
        _flow(track),
    ]
    drawn = "".join(html for chart in found if chart is not None and (html := chart.html()))
    heat = _heat(track)
    if heat:
        drawn += heat.replace('class="chart heat"', 'class="chart heat wide"')
    return (
        f'<div class="charts">{drawn}</div>'
        if drawn
        else '<p class="facts">Nothing was measured.</p>'
    )


def _course(name: str, points: list[Point], colour: str) -> list[Line]:
    """A noisy series as a faint line under its running median."""
    finite = [p for p in points if math.isfinite(p[1])]
    if len(finite) < 120:
        return [Line(name, points, colour)]
    return [
        Line(name, points, colour, faint=True),
        Line(name, running_median(finite), colour, shown=False),
    ]


def _loss(track: Track, findings: list[Finding]) -> Chart:
    marks = [
        Mark(float(f.evidence["step"]), f.code, f.severity.value)
        for f in findings
        if f.severity.value != "info"
        and isinstance(f.evidence.get("step"), int)
        and f.evidence["step"] < 0.95 * track.rows[-1].index
        and f.evidence.get("optimizer", track.optimizer) == track.optimizer
    ]
    return Chart(
        "Loss",
        _course("loss", [(float(i), v) for i, v in track.losses()], "loss"),
        marks=_apart(marks),
    )


def _apart(marks: list[Mark]) -> list[Mark]:
    """Findings at one update share one mark."""
    by_place: dict[float, Mark] = {}
    for mark in marks:
        known = by_place.get(mark.at)
        if known is None:
            by_place[mark.at] = mark
        elif mark.label not in known.label:
            known.label += f" {mark.label}"
    return list(by_place.values())


def _norm(track: Track) -> Chart:
    norms = [(float(i), v) for i, v in track.norms()]
    lines = _course(
        "norm before clipping" if any(r.clip_norm is not None for r in track.rows) else "norm",
        norms,
        "norm",
    )
    limits = [
        (float(r.index), r.clip_threshold)
        for r in track.rows
        if r.clip_threshold is not None and math.isfinite(r.clip_threshold)
    ]
    if limits:
        lines.append(Line("clip threshold", limits, "clip", dashed=True))
    parts = f" of rank {track.rank}'s shards" if track.norms_are_parts else ""
    return Chart(f"Gradient norm{parts}", lines)


def _rate(track: Track) -> Chart:
    return Chart(
        "Learning rate",
        [
            Line(
                "learning rate",
                [(float(r.index), r.lr) for r in track.rows if r.lr is not None],
                "rate",
            )
        ],
        from_zero=True,
        y_log=False,
    )


def _scale(track: Track) -> Chart | None:
    points = [(float(r.index), r.scale) for r in track.rows if r.scale is not None]
    if not points:
        return None
    skipped = [r.index for r in track.rows if r.skipped]
    marks = [Mark(float(i), "", "warning") for i in skipped[:: max(1, len(skipped) // 80)]]
    note = f"{len(skipped):,} skipped updates are marked." if skipped else ""
    return Chart(
        "Loss scale", [Line("loss scale", points, "scale")], marks=marks, note=note, y_log=True
    )


def _memory(track: Track) -> Chart | None:
    bytes_ = [(float(r.index), r.memory / 2**20) for r in track.rows if r.memory is not None]
    graphs = [(r.index, r.graphs) for r in track.rows if r.graphs is not None]
    if not bytes_:
        return None
    most = max((count for _, count in graphs), default=0)
    note = f"At most {most:,} autograd graphs were alive at once." if graphs and most > 3 else ""
    return Chart(
        "Memory",
        [Line("memory", bytes_, "memory")],
        unit=" MiB",
        from_zero=True,
        y_log=False,
        note=note,
    )


# -- layers ------------------------------------------------------------------------------------------------------


def _matrices(parameters: list[ParameterInfo]) -> list[int]:
    """The rows worth showing, from the input to the output: matrices, or all when there are none."""
    wanted = [i for i, p in enumerate(parameters) if len(p.shape) >= 2] or list(
        range(len(parameters))
    )
    wanted.sort(key=lambda i: parameters[i].depth)
    if len(wanted) > MAP_ROWS:
        wanted = [wanted[k * (len(wanted) - 1) // (MAP_ROWS - 1)] for k in range(MAP_ROWS)]
    return wanted


def _same_layout(track: Track) -> list[Sample]:
    """The samples with the parameters that the run ended with."""
    return (
        [s for s in track.samples if s.layout.id == track.samples[-1].layout.id]
        if track.samples
        else []
    )


def _heat(track: Track) -> str:
    samples = _same_layout(track)
    if len(samples) < 2:
        return ""
    if len(samples) > MAP_COLUMNS:
        samples = [samples[k * (len(samples) - 1) // (MAP_COLUMNS - 1)] for k in range(MAP_COLUMNS)]
    parameters = samples[-1].layout.parameters
    wanted = _matrices(parameters)
    columns = [s.column("norm") for s in samples]
    rows = [[_log(column[i]) for column in columns] for i in wanted]
    return heat_map(_names(parameters, wanted), [s.index for s in samples], rows)


def _names(parameters: list[ParameterInfo], wanted: list[int]) -> list[str]:
    """Without the ".weight" that most of them end with."""
    return [parameters[i].name.removesuffix(".weight") for i in wanted]


def _log(norm: float) -> float | None:
    if norm != norm:
        return None
    return math.log10(norm) if 0 < norm < math.inf else -math.inf if norm == 0 else math.inf


def _flow(track: Track) -> Chart | None:
    """Typical size of one gradient value, from the input to the output, early and late in the run."""
    samples = _same_layout(track)
    if not samples:
        return None
    parameters = samples[-1].layout.parameters
    wanted = _matrices(parameters)
    if len(wanted) < 2:
        return None
    quarter = max(1, len(samples) // 4)
    lines = [Line("last quarter", _profile(samples[-quarter:], wanted), "norm")]
    if len(samples) >= 4:
        lines.insert(
            0, Line("first quarter", _profile(samples[:quarter], wanted), "other", dashed=True)
        )
    return Chart(
        "Gradient flow by depth",
        lines,
        note="Root mean square of the gradient of each matrix, from the input (left) to the output (right).",
        y_log=True,
        x_name="layer",
        x_labels=_names(parameters, wanted),
    )


def _profile(samples: list[Sample], wanted: list[int]) -> list[Point]:
    columns = [s.column("norm") for s in samples]
    points = []
    for position, i in enumerate(wanted):
        count = max(1, samples[-1].layout.parameters[i].count)
        sizes = sorted(c[i] / math.sqrt(count) for c in columns if 0 < c[i] < math.inf)
        if sizes:
            points.append((float(position), sizes[len(sizes) // 2]))
    return points


# -- time --------------------------------------------------------------------------------------------------------


def time_breakdown(series: Series, rank: int) -> str:
    """Where the time of an update went, in all and over the run."""
    rows = sorted(
        (r for t in series.of_rank(rank) for r in t.rows if r.seconds), key=lambda r: r.time
    )
    rows = [r for r in rows if "other" in r.seconds] or rows  # the first update has no beginning
    if len(rows) < 2:
        return ""
    totals = {part: sum(r.seconds.get(part, 0.0) for r in rows) for part in PARTS}
    whole = sum(totals.values())
    if not whole:
        return ""
    bar = "".join(
        f'<i style="--c:var(--{p});width:{100 * s / whole:.2f}%" title="{p}"></i>'
        for p, s in totals.items()
        if s
    )
    shares = "".join(
        f'<span><i style="--c:var(--{p})"></i>{p} <b>{s / whole:.0%}</b> {seconds_text(s / len(rows))}</span>'
        for p, s in totals.items()
        if s
    )
    figure = (
        '<figure class="chart wide"><figcaption><h3>Share of the time between updates</h3>'
        f'<span class="legend">mean over {len(rows):,} updates</span></figcaption><div class="bar">{bar}</div><div class="shares">{shares}</div></figure>'
    )
    return f'<h2>Time of an update</h2><div class="charts">{figure}{_stacked(rows)}</div>'


def _stacked(rows: list[UpdateRow]) -> str:
    """Milliseconds per update over the run; each stretch shows its median update, so that one pause does not hide the rest."""
    buckets = min(80, len(rows) // 2)
    low: list[Point] = []
    areas: list[Area] = []
    stretches = [
        rows[len(rows) * b // buckets : len(rows) * (b + 1) // buckets] for b in range(buckets)
    ]
    places = [float(len(rows) * (2 * b + 1) // (2 * buckets)) for b in range(buckets)]
    low = [(x, 0.0) for x in places]
    for part in PARTS:
        sizes = [sorted(1000 * r.seconds.get(part, 0.0) for r in s)[len(s) // 2] for s in stretches]
        high = [(x, base + size) for (x, base), size in zip(low, sizes, strict=True)]
        if any(sizes):
            areas.append(Area(part, part, low, high))
        low = high
    top = Line("sum of the medians", low, "ink", faint=True, shown=False)
    chart = Chart("Time per update", [top], areas=areas, unit=" ms", from_zero=True, y_log=False)
    return chart.html().replace('class="chart"', 'class="chart wide"', 1)


# -- ranks -------------------------------------------------------------------------------------------------------
