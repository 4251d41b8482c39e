"""Which of a thousand ranks are worth opening: the first, and those that differ from the rest."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping

from fallline.runs.rank import PARTS, RankState

__all__ = ["MANY", "outstanding", "own_seconds"]

MANY = 16  # ranks: up to here all are opened
OPENED = 8


def outstanding(states: Mapping[int, RankState], ranks: list[int]) -> set[int]:
    """The ranks whose files are read in full: all of a few; of many those that stand out, and those that left no summary."""
    if len(ranks) <= MANY:
        return set(ranks)
    known = [states[r] for r in ranks if r in states]
    chosen = [r for r in ranks if r not in states][:OPENED]
    for state in (*known[:1], *_strange(known)):
        if state.rank not in chosen and len(chosen) < OPENED:
            chosen.append(state.rank)
    return {*chosen, *(r for r in ranks if r not in states)}


def _strange(states: list[RankState]) -> Iterable[RankState]:
    """The most telling first."""
    yield from (s for s in states if s.noted)
    yield from _drifted(states)
    endings = Counter(s.ended for s in states)
    yield from (s for s in states if endings[s.ended] * 2 < len(states))
    codes = Counter(f["code"] for s in states for f in s.findings)
    yield from (s for s in states if any(codes[f["code"]] * 2 < len(states) for f in s.findings))
    timed = sorted((s for s in states if s.seconds), key=own_seconds)
    yield from (*timed[-1:], *timed[:1])
    yield from sorted(states, key=lambda s: s.updates)[:1]


def _drifted(states: list[RankState]) -> Iterable[RankState]:
    """Ranks whose parameters are not those of most others, at the first update where that shows."""
    for update in sorted({u for s in states for u in s.prints}):
        prints = Counter(s.prints[update] for s in states if update in s.prints)
        if len(prints) > 1:
            usual = prints.most_common(1)[0][0]
            yield from (s for s in states if s.prints.get(update, usual) != usual)
            return


def own_seconds(state: RankState) -> float:
    """Seconds of an update in which it does not wait for others."""
    whole = sum(state.seconds.get(part, 0.0) for part in PARTS)
    return whole - state.seconds.get("wait", 0.0) - state.seconds.get("meet", 0.0)
