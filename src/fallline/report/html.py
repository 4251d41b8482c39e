"""One self-contained page about a run: no network, no library; complete without a script."""

from __future__ import annotations

import math
import time
from html import escape
from pathlib import Path

from fallline._version import __version__
from fallline.finding import Finding
from fallline.report.html_findings import finding_cards
from fallline.report.html_ranks import ranks_table
from fallline.report.html_run import charts, time_breakdown
from fallline.report.html_style import SCRIPT, STYLE
from fallline.report.run import SHOWN, Overview, overview, verdict
from fallline.report.written import write_text
from fallline.runs.series import Series, Track
from fallline.show.numbers import bytes_text, number, seconds_text

__all__ = ["page", "write_page"]


def write_page(series: Series, findings: list[Finding], target: Path) -> Path:
    """The page as a file, whole or not at all."""
    return write_text(page(series, findings), target)


def page(series: Series, findings: list[Finding]) -> str:
    """The whole page."""
    script = str(series.meta.get("script") or "run")
    body = [_head(series, script, findings)]
    if findings:
        body.append(f"<h2>Findings</h2>{finding_cards(series, findings)}")
    rank = min((t.rank for t in series.tracks), default=0)
    tracks = series.of_rank(rank)
    for position, track in enumerate(tracks):
        name = f"{track.optimizer} · {track.type}" if track.type else track.optimizer
        heading = escape("Over the updates" if len(tracks) == 1 else f"Over the updates: {name}")
        drawn = charts(track, findings)
        body.append(
            f"<h2>{heading}</h2>{drawn}"
            if position < SHOWN
            else f"<details><summary>{heading}</summary>{drawn}</details>"
        )
    body.append(time_breakdown(series, rank))
    body.append(ranks_table(series, findings))
    written = time.strftime("%Y-%m-%d %H:%M")
    body.append(
        f"<footer>Written by fallline {escape(__version__)} on {written} from {escape(str(series.folder))}.</footer>"
    )
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width,initial-scale=1">'
        f'<meta name="generator" content="fallline {escape(__version__)}"><title>{escape(script)} · fallline</title>'
        f'<link rel="icon" href="data:,"><style>{STYLE}</style></head><body><main>{"".join(body)}</main>'
        f"<script>{SCRIPT}</script></body></html>\n"
    )


def _head(series: Series, script: str, findings: list[Finding]) -> str:
    started = series.meta.get("started")
    when = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(started)) if started else ""
    main = max(series.tracks, key=lambda t: (-t.rank, len(t.rows)), default=None)
    seen = overview(series, main)
    arguments = " ".join(map(str, series.meta.get("argv") or []))
    facts = [
        f"started {when}" if when else "",
        f"ran {seconds_text(seen.duration)}" if seen.duration else "",
        _versions(series),
        seen.status,
    ]
    worst = min(
        (f.severity.value for f in findings), key=("error", "warning", "info").index, default="good"
    )
    colour = "good" if worst == "info" else worst
    says = verdict(findings)
    hint = (
        "Each is explained below, with the line to change."
        if worst in {"error", "warning"}
        else "The numbers of the run are below."
    )
    return (
        f'<p class="brand">fallline · run report</p><header><h1>{escape(script)}</h1>'
        + (f'<span class="facts">{escape(arguments)}</span>' if arguments else "")
        + f'</header><p class="facts">{escape(" · ".join(f for f in facts if f))}</p>'
        f'<div class="verdict" style="--c:var(--{colour})"><strong>{escape(says[0].upper() + says[1:])}</strong><span>{hint}</span></div>'
        f"{_tiles(series, seen, main)}"
    )


def _versions(series: Series) -> str:
    versions = [
        f"{name} {series.meta[name]}" for name in ("torch", "python") if series.meta.get(name)
    ]
    return ", ".join(versions)


def _tiles(series: Series, seen: Overview, track: Track | None) -> str:
    if track is None:
        return '<p class="facts">The run made no update of an optimizer.</p>'
    notes = [f"{seen.skipped:,} skipped"] if seen.skipped else []
    if len(series.of_rank(track.rank)) > 1:
        notes.append(f"of {escape(track.optimizer)}")
    note = f"<small> {', '.join(notes)}</small>" if notes else ""
    tiles = [
        ("Updates", f"{seen.updates:,}{note}"),
        (
            "Loss, at the end",
            f"{number(seen.last_loss)}<small> from {number(seen.first_loss)}</small>",
        ),
        ("Gradient norm", f"{number(seen.norm)}<small> median</small>"),
    ]
    if seen.clipped is not None and seen.threshold is not None and math.isfinite(seen.threshold):
        tiles.append(("Clipped", f"{seen.clipped:.0%}<small> at {number(seen.threshold)}</small>"))
    if seen.scale is not None:
        tiles.append(("Loss scale", number(seen.scale)))
    tiles.append(("Learning rate", number(seen.rate)))
    if seen.update_seconds is not None:
        tiles.append(("Time per update", seconds_text(seen.update_seconds)))
    if seen.memory is not None:
        tiles.append(("Memory, at most", bytes_text(seen.memory)))
    shown = "".join(
        f'<div class="tile"><dt>{label}</dt><dd>{value}</dd></div>' for label, value in tiles
    )
    return f'<dl class="tiles">{shown}</dl>'
