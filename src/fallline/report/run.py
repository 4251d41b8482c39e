"""A run in a terminal: what it was, how it went, what was found."""

from __future__ import annotations

import time

from fallline.finding import Finding
from fallline.runs.attempts import attempt_lines
from fallline.runs.ending import how
from fallline.runs.excerpt import excerpt
from fallline.runs.overview import JUDGED, Overview, longest, measured, overview
from fallline.runs.series import Series, Track
from fallline.show.numbers import seconds_text
from fallline.show.terminal import SEVERITY_STYLE, Paint, counted

__all__ = [
    "SHOWN",
    "Overview",
    "finding_lines",
    "overview",
    "summary",
    "verdict",
]

SHOWN = 4  # optimizers with all their numbers; a search over settings makes hundreds


def verdict(findings: list[Finding]) -> str:
    """`2 errors and 1 warning`; `nothing wrong was found`."""
    kinds = [f.severity.value for f in findings]
    nouns = (("error", "error"), ("warning", "warning"), ("info", "note"))
    parts = [counted(kinds.count(kind), noun) for kind, noun in nouns if kind in kinds]
    if not parts:
        return "nothing wrong was found"
    return parts[0] if len(parts) == 1 else f"{', '.join(parts[:-1])} and {parts[-1]}"


def summary(series: Series, findings: list[Finding], paint: Paint) -> str:
    """What `fallline report` prints."""
    lines = [paint(str(series.meta.get("script") or series.folder or "run"), "bold")]
    main = longest(series)
    seen = overview(series, main)
    started = series.meta.get("started")
    when = time.strftime("%Y-%m-%d %H:%M", time.localtime(started)) if started else ""
    about = [
        when,
        seconds_text(seen.duration) if seen.duration else "",
        _ranks(series),
        seen.status,
    ]
    lines.append(paint("  " + " · ".join(part for part in about if part), "dim"))
    lines += [f"  {line}" for line in attempt_lines(series.attempts)]
    tracks = series.of_rank(main.rank if main else 0)
    for track in tracks[:SHOWN]:
        lines += ["", *_track_lines(series, track, paint, alone=len(tracks) == 1)]
    if len(tracks) > SHOWN:
        updates = sum(t.totals.get("updates", len(t.rows)) for t in tracks[SHOWN:])
        more = counted(len(tracks) - SHOWN, "more optimizer")
        lines += ["", f"  and {more} with {counted(updates, 'update')} together"]
    if main is None:
        lines += ["", "  The run made no update of an optimizer."]
    lines += ["", *finding_lines(series, findings, paint)]
    return "\n".join(lines) + "\n"


def _ranks(series: Series) -> str:
    """How many there are; where folders of other machines are missing, how many of them were read."""
    there = len(series.ranks)
    if series.world > there:
        return f"{there} of {counted(series.world, 'rank')}"
    return counted(there, "rank") if there > 1 else ""


def _track_lines(series: Series, track: Track, paint: Paint, alone: bool) -> list[str]:
    name = f"{track.optimizer} ({track.type})" if track.type else track.optimizer
    return [
        f"  {paint(name, 'bold')}{'' if alone else _whose(track)}",
        *(
            f"    {paint(f'{label:<16}', 'dim')}{text}"
            for label, text in measured(series, track).items()
        ),
    ]


def _whose(track: Track) -> str:
    """Which of several optimizers this is: what it trains, and the line of its step."""
    models = [m for m in track.facts.get("trains") or () if isinstance(m, str)]
    trained = f" trains {', '.join(models)}" if models else ""
    return f"{trained}, stepped at {track.at}" if track.at.path else trained


def _reservation(series: Series, findings: list[Finding]) -> str:
    """What an all-clear leaves out: a short run shows its events, but hardly its numbers, and one that broke off only its beginning."""
    if findings:
        return ""
    updates = max((t.totals.get("updates", len(t.rows)) for t in series.tracks), default=0)
    if not updates:
        return ", but no update was made"
    broke_off = next(filter(None, (how(rank.status) for rank in series.ranks)), "")
    before = f" before the script {broke_off}" if broke_off else ""
    few = f"; rules about numbers need {JUDGED}" if updates < JUDGED else ""
    return f" in {counted(updates, 'update')}{before}{few}" if before or few else ""


def finding_lines(series: Series, findings: list[Finding], paint: Paint) -> list[str]:
    """The verdict, then each finding with its line, the worst first."""
    said = verdict(findings).capitalize() + _reservation(series, findings)
    lines = [f"  {paint(f'{said}.', 'bold')}"]
    for finding in sorted(findings, key=lambda f: f.severity.rank):
        code = paint(finding.code, SEVERITY_STYLE[finding.severity.value])
        lines += [
            "",
            f"  {code} {paint(finding.name, 'bold')}: {finding.message}",
            f"    {paint('-->', 'blue')} {finding.at}",
        ]
        lines += [
            f"    {paint(f'{n:>5} |', 'blue')} {text}"
            for n, text, hit in excerpt(finding, series, around=0).lines
            if hit
        ]
    return lines
