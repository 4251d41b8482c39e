"""FL324: a rank ended before the others."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from typing import Any

from fallline.finding import Finding, Severity
from fallline.location import Location
from fallline.rule import Rule
from fallline.rules.distributed._specimen import RANKS, RANKS_TRAIN

__all__ = ["RankDied"]

# how a rank ends that another one has left alone
_LEFT_ALONE = re.compile(
    r"peer|connection|broken pipe|socket|timed? ?out|nccl|aborted|SIGTERM|terminat", re.IGNORECASE
)


class RankDied(Rule):
    code = "FL324"
    name = "rank-died"
    severity = Severity.ERROR
    what = "A rank ended before the others."
    why = (
        "The others cannot continue without it: they raise errors about connections, or are stopped by the launcher, and those messages hide the one "
        "that matters."
    )
    instead = "Look at that rank's own error first. A rank that ended without a word was killed from outside: usually by the system, out of memory (`dmesg | grep -i oom`), or by the cluster."
    wrong = (
        "import os\n\n"
        + RANKS
        + """\
for update in range(60):
    if update == 30 and dist.get_rank() == 1:
        raise RuntimeError("a corrupt sample")  # FL324
    loss = model(torch.randn(16, 8)).pow(2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
dist.destroy_process_group()
""",
    )
    right = (RANKS + RANKS_TRAIN,)

    quiet = 10.0  # seconds in which the others were heard of
    fresh = 8.0  # seconds: who wrote since then may still be there, and writes every four

    def check_series(self, run: Any) -> Iterator[Finding]:
        states = list(run.states.values())
        first = self._first(states)
        if first is None:
            return
        others = [s for s in states if s is not first]
        how = (
            f"ended: {first.ended}"
            if first.ended
            else "ended without a word, so it was killed from outside (out of memory?)"
        )
        after = f" {_others(others)}"
        # What a killed rank wrote last may be some seconds old
        updates = max([first.updates, *(_updates(t) for t in run.of_rank(first.rank))])
        least = "" if first.ended else "at least "
        when = f", after {least}{updates} updates" if updates or first.ended else ""
        yield self.finding(
            first.at or self._place(run, first.rank),
            f"Rank {first.rank} {how}{when}.{after}",
            rank=first.rank,
            status=first.ended,
            updates=updates,
            written=first.written,
        )

    def _first(self, states: list[Any]) -> Any:
        """The rank that went first, where one did."""
        if len(states) < 2:
            return None
        failed = [s for s in states if s.ended and not _well(s.ended)]
        own = [s for s in failed if not _LEFT_ALONE.search(s.ended)]
        now = time.time()
        gone = [s for s in states if not s.ended and now - s.written > self.fresh]
        newest = max(s.written for s in states)
        silent = [s for s in gone if newest - s.written > self.quiet]
        if own and len(own) < len(states) and len({s.ended for s in own}) == 1:
            return min(own, key=lambda s: s.written)
        if failed and not own and gone:  # the others lost their connection to it
            return min(gone, key=lambda s: s.written)
        if silent and len(silent) < len(states):
            return min(silent, key=lambda s: s.written)
        return None

    @staticmethod
    def _place(run: Any, rank: int) -> Location:
        track = next((t for t in (*run.of_rank(rank), *run.tracks) if t.rows), None)
        return track.loss_at if track is not None else Location("", 1)


def _updates(track: Any) -> int:
    return int(track.totals.get("updates", len(track.rows)))


def _well(status: str) -> bool:
    return status in ("finished", "exit 0")


def _others(states: list[Any]) -> str:
    still = [s for s in states if not s.ended]
    if len(still) == len(states):
        return "The others were stopped, or wait for it."
    ended = next(s for s in states if s.ended)
    return f"Rank {ended.rank} then ended: {ended.ended}."
