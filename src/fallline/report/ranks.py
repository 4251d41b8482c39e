"""Where every rank is, in a terminal: one line for ranks that do the same."""

from __future__ import annotations

from collections.abc import Mapping

from fallline.runs.rank import RankState
from fallline.runs.stall import ranks_text, sentences, stall_of
from fallline.show.numbers import seconds_text
from fallline.show.terminal import Paint

__all__ = ["rank_lines"]

SHOWN = 24


def rank_lines(states: Mapping[int, RankState], paint: Paint) -> list[str]:
    """What each rank does, and since when it has made no update."""
    groups: dict[tuple[str, str, str, int], list[RankState]] = {}
    for state in states.values():
        place = f"{state.at}" if state.at is not None else ""
        groups.setdefault((state.ended, state.doing, place, state.updates), []).append(state)
    newest = max((s.written for s in states.values()), default=0.0)
    ordered = sorted(groups.items(), key=lambda item: len(item[1]))
    lines = [_line(key, ranks, newest, paint) for key, ranks in ordered[:SHOWN]]
    if len(ordered) > SHOWN:
        left = sum(len(ranks) for _, ranks in ordered[SHOWN:])
        lines.append(f"  and {left} more ranks")
    stall = stall_of(states)
    if stall is not None:
        lines += ["", f"  {paint(f'No update for {stall.idle:.0f} s.', 'bold')}"]
        lines += [f"  {sentence}" for sentence in sentences(stall)]
    return lines


def _line(
    key: tuple[str, str, str, int], ranks: list[RankState], newest: float, paint: Paint
) -> str:
    ended, doing, place, updates = key
    function = ranks[0].at.function if ranks[0].at is not None else ""
    where = f"{place} in {function}()" if place and function else place
    what = ended or " ".join(part for part in (doing, where) if part) or "busy"
    quiet = newest - max(s.written for s in ranks)
    late = f", not heard of for {seconds_text(quiet)}" if not ended and quiet > 10 else ""
    idle = min(s.idle for s in ranks)
    since = f", no update for {seconds_text(idle)}" if not ended and idle > 10 else ""
    return f"  {paint(f'{ranks_text(ranks):<16}', 'bold')} update {updates:,}  {what}{since}{late}"
