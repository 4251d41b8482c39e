"""Ranks of which some wait for others: who waits where, and who is elsewhere. From `rankN.json` alone."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from fallline.location import Location
from fallline.runs.rank import RankState

__all__ = ["STALLED", "Stall", "ranks_text", "stall_of", "stall_text"]

STALLED = 30.0  # seconds without an update, at least
TIMES = 10  # and so many times the longest update


@dataclass(frozen=True, slots=True)
class Stall:
    """Some ranks wait, others are elsewhere. `silent` ones were no longer heard of when the others were."""

    idle: float
    waiting: dict[tuple[str, str], list[RankState]]  # (call, place) → ranks
    elsewhere: list[RankState]
    silent: list[RankState]
    ended: list[RankState]


def stall_of(states: Mapping[int, RankState], least: float = STALLED) -> Stall | None:
    """None while ranks still make updates, or where there is only one."""
    alive = [s for s in states.values() if not s.ended]
    if len(states) < 2 or not alive:
        return None
    newest = max(s.written for s in alive)
    last = max(s.last_update or s.started for s in states.values())
    idle = newest - last
    if idle < max(least, TIMES * max(s.longest for s in states.values())):
        return None
    silent = [s for s in alive if newest - s.written > max(least, 10.0)]
    heard = [s for s in alive if s not in silent]
    waiting: dict[tuple[str, str], list[RankState]] = {}
    for state in heard:
        if state.waits:
            waiting.setdefault((state.doing, str(state.at or "")), []).append(state)
    elsewhere = [s for s in heard if not s.waits]
    return Stall(idle, waiting, elsewhere, silent, [s for s in states.values() if s.ended])


def stall_text(states: Mapping[int, RankState]) -> str:
    """One sentence for each group of ranks; empty where there is nothing to tell."""
    stall = stall_of(states)
    return "" if stall is None else " ".join(sentences(stall))


def sentences(stall: Stall) -> list[str]:
    said = [
        f"{ranks_text(ranks)} {_verb(ranks, 'wait')} in {call}{_place(place)} (update {ranks[0].updates})."
        for (call, place), ranks in stall.waiting.items()
    ]
    said += [
        f"Rank {s.rank} is {_doing(s)}{_place(str(s.at or ''), s.at)} (update {s.updates})."
        for s in stall.elsewhere
    ]
    said += [
        f"Rank {s.rank} has not been heard of for {max(0.0, _newest(stall) - s.written):.0f} s; it was last {_doing(s)}"
        f"{_place(str(s.at or ''), s.at)} (update {s.updates})."
        for s in stall.silent
    ]
    said += [f"Rank {s.rank} has ended ({s.ended}) after {s.updates} updates." for s in stall.ended]
    return said


def _newest(stall: Stall) -> float:
    groups = [*stall.waiting.values(), stall.elsewhere, stall.silent]
    return max((s.written for group in groups for s in group), default=0.0)


def _doing(state: RankState) -> str:
    return f"in {state.doing}" if state.doing else "busy"


def _place(shown: str, at: Location | None = None) -> str:
    function = f" in {at.function}()" if at is not None and at.function else ""
    return f" at {shown}{function}" if shown else ""


def _verb(ranks: list[RankState], verb: str) -> str:
    return verb if len(ranks) > 1 else f"{verb}s"


def ranks_text(ranks: Iterable[RankState]) -> str:
    """`Ranks 0, 2 and 3`; long lists are cut."""
    numbers = sorted(s.rank for s in ranks)
    if len(numbers) == 1:
        return f"Rank {numbers[0]}"
    if len(numbers) > 6:
        return f"{len(numbers)} ranks ({', '.join(map(str, numbers[:3]))}, ...)"
    return f"Ranks {', '.join(map(str, numbers[:-1]))} and {numbers[-1]}"
