"""Elastic launches: `torchrun --max-restarts` starts all ranks again when one of them dies. Each attempt has a folder of its own,
`run`, `run-2`, ...; here those of one launch find each other."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass, field
from pathlib import Path

from fallline.runs.rank import RankState, read_rank, read_ranks
from fallline.runs.stall import ranks_text

__all__ = ["Attempt", "attempt_lines", "earlier_attempts", "launch_of_now"]

MOST = 64


@dataclass(slots=True)
class Attempt:
    """One that came before."""

    number: int  # from 0
    folder: Path
    states: dict[int, RankState] = field(default_factory=dict)

    @property
    def updates(self) -> int:
        return max((s.updates for s in self.states.values()), default=0)


def launch_of_now() -> tuple[str, int]:
    """What all attempts of this launch have in common, and which attempt this is; "" where nothing starts ranks again."""
    get = os.environ.get
    run, count = get("TORCHELASTIC_RUN_ID", ""), get("TORCHELASTIC_RESTART_COUNT", "")
    if not count.isdigit() or get("TORCHELASTIC_MAX_RESTARTS", "0") in ("", "0"):
        return "", 0
    if run in (
        "",
        "none",
    ):  # torchrun's own name for a launch without one: its process tells launches apart
        if get("LOCAL_WORLD_SIZE") != get("WORLD_SIZE"):
            return "", 0
        run = f"launcher {os.getppid()}"
    return run, int(count)


def earlier_attempts(folder: Path) -> list[Attempt]:
    """The attempts before the one in this folder, in their order."""
    mine = _any_state(folder)
    if mine is None or not mine.launch or not mine.attempt:
        return []
    found: dict[int, tuple[float, Path]] = {}
    base = re.sub(r"-\d{1,4}$", "", folder.name)
    for other in sorted(folder.absolute().parent.glob(f"{_literal(base)}*"))[:10_000]:
        state = _any_state(other) if other.is_dir() and other.name != folder.name else None
        if state is not None and state.launch == mine.launch and state.attempt < mine.attempt:
            known = found.get(state.attempt)
            if (
                known is None or state.started > known[0]
            ):  # a name that a later launch has taken over
                found[state.attempt] = (state.started, other)
    return [Attempt(n, path, read_ranks([path])) for n, (_, path) in sorted(found.items())][-MOST:]


def _any_state(folder: Path) -> RankState | None:
    """Of the first rank that has one: all ranks of an attempt say the same about it."""
    for path in sorted(folder.glob("rank*.json"))[:1000]:
        state = read_rank(path)
        if state is not None:
            return state
    return None


def _literal(name: str) -> str:
    return re.sub(r"([\[\]*?])", r"[\1]", name)


def attempt_lines(attempts: list[Attempt]) -> list[str]:
    """How each of them ended."""
    said = []
    for attempt in attempts:
        endings: dict[str, list[RankState]] = {}
        for state in attempt.states.values():
            endings.setdefault(_short(state.ended) or "stopped or killed", []).append(state)
        ended = "; ".join(f"{ranks_text(ranks)}: {how}" for how, ranks in endings.items())
        said.append(
            f"attempt {attempt.number + 1}: {attempt.updates:,} updates in {attempt.folder.name}; {ended}"
        )
    return said


def _short(ended: str) -> str:
    return ended if len(ended) <= 100 else f"{ended[:97]}..."
