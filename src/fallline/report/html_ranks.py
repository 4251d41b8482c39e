"""The ranks of a run as a table: how long each works and waits, where it is, how it ended."""

from __future__ import annotations

import statistics
from collections.abc import Iterable
from html import escape

from fallline.finding import Finding
from fallline.runs.attempts import attempt_lines
from fallline.runs.many import own_seconds
from fallline.runs.rank import RankState
from fallline.runs.series import Rank, Series
from fallline.show.numbers import number, seconds_text

__all__ = ["ranks_table"]

SHOWN = 64  # the slowest, where there are more


def ranks_table(series: Series, findings: Iterable[Finding]) -> str:
    """One line for one process; those that a finding calls slow stand out."""
    if len(series.ranks) < 2:
        return ""
    before = "".join(
        f'<p class="facts">{escape(line)}</p>' for line in attempt_lines(series.attempts)
    )
    times = {rank.number: _times(series, rank.number) for rank in series.ranks}
    late = _late(findings)
    shown = series.ranks
    if len(shown) > SHOWN:
        shown = sorted(shown, key=lambda r: -times[r.number][0])[:SHOWN]
    lines = "".join(_line(series, rank, times[rank.number], rank.number in late) for rank in shown)
    left = len(series.ranks) - len(shown)
    more = (
        f'<p class="facts">The {len(shown)} slowest of {len(series.ranks):,} ranks.</p>'
        if left
        else ""
    )
    return (
        '<h2>Ranks</h2><div class="scroll" tabindex="0" role="region" aria-label="ranks"><table><thead><tr><th>rank</th><th>updates</th>'
        "<th>works, per update</th><th>waits for others</th><th>last loss</th><th>last seen</th><th>status</th></tr></thead>"
        f"<tbody>{lines}</tbody></table></div>{more}{before}"
    )


def _late(findings: Iterable[Finding]) -> list[int]:
    named = [f.evidence.get("late") for f in findings if f.code == "FL321"]
    return [rank for ranks in named if isinstance(ranks, list) for rank in ranks]


def _line(series: Series, rank: Rank, times: tuple[float, float], slow: bool) -> str:
    works, waits = times
    state = series.states.get(rank.number)
    worked = seconds_text(works or None)
    cells = (
        str(rank.number),
        f"{_updates(series, rank.number):,}",
        f'<span class="slow">{worked}, straggler</span>' if slow else worked,
        seconds_text(waits or None),
        number(_last_loss(series, rank.number)),
        escape(_where(state)),
        escape(rank.status or "killed, or still running"),
    )
    return f"<tr>{''.join(f'<td>{cell}</td>' for cell in cells)}</tr>"


def _where(state: RankState | None) -> str:
    if state is None or state.at is None:
        return ""
    function = f" in {state.at.function}()" if state.at.function else ""
    return f"{state.doing} {state.at}{function}".strip()


def _times(series: Series, number: int) -> tuple[float, float]:
    """Seconds of an update in which the rank works, and in which it waits for others."""
    state = series.states.get(number)
    if state is not None and "wait" in state.seconds:
        return own_seconds(state), state.seconds["wait"] + state.seconds.get("meet", 0.0)
    rows = [r.seconds for t in series.of_rank(number) for r in t.rows if r.seconds]
    if not rows:
        return 0.0, 0.0
    # the fast ones wait for the slow in backward and step
    before = statistics.median(r.get("data", 0.0) + r.get("forward", 0.0) for r in rows)
    return before, statistics.median(r.get("backward", 0.0) + r.get("step", 0.0) for r in rows)


def _updates(series: Series, number: int) -> int:
    tracks = series.of_rank(number)
    if tracks or number not in series.states:
        return sum(t.totals.get("updates", len(t.rows)) for t in tracks)
    return series.states[number].updates


def _last_loss(series: Series, rank: int) -> float | None:
    return next(
        (r.loss for t in series.of_rank(rank) for r in reversed(t.rows) if r.loss is not None), None
    )
