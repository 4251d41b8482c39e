"""Where this rank is: the training thread's stack, seen from the recorder's thread every few seconds.

The training thread does nothing for it. A rank that is stuck in Python or in a call that lets other threads run is still
seen; one that holds the interpreter, or is dead, stops being written, which is an answer too.
"""

from __future__ import annotations

import hashlib
import os
import platform
import statistics
import sys
import time
from array import array
from collections import deque
from collections.abc import Callable
from pathlib import Path
from types import TracebackType

from fallline.finding import Finding
from fallline.location import Location
from fallline.runs.attempts import launch_of_now
from fallline.runs.rank import PARTS, RankState, read_rank, read_ranks, write_rank
from fallline.runs.stall import STALLED, stall_text
from fallline.runs.update import UpdateRow
from fallline.taps.frames import is_user_file, locate
from fallline.watcher.collectives import RECENT, Collectives
from fallline.watcher.observed import Observed
from fallline.watcher.progress import Progress
from fallline.watcher.recorder import FLUSH_SECONDS
from fallline.watcher.whereabouts import Whereabouts, where

__all__ = ["Heartbeat"]

PRINTS = 48  # digests of the parameters: the first third stays, of the others the latest
FINDINGS = 20
# What a rank takes more or less than another, of an update and in seconds: half of what FL321 calls a straggler.
UNEVEN, UNEVEN_SECONDS = 0.1, 0.0025


class Heartbeat:
    """Of one process. `beat` and `row` are called in the recorder's thread."""

    def __init__(
        self,
        progress: Progress,
        collectives: Collectives,
        observed: Observed,
        found: Callable[[], list[Finding]],
        took: Callable[[float], None],
    ) -> None:
        self._progress = progress
        self._collectives = collectives
        self._observed = observed
        self._found = found
        self._whereabouts = Whereabouts(self._made, took)
        self._recent: deque[dict[str, float]] = deque(maxlen=RECENT)
        self._parts: dict[str, float] | None = None  # what they come to; None: not known yet
        self._prints: dict[int, str] = {}
        self._last = self._longest = 0.0
        self._cpu = (time.monotonic(), time.process_time())
        self._started = time.time()
        self._launch = launch_of_now()
        self._steps = 0
        self._crashed_at: Location | None = None
        self._said = 0.0  # the update after which a stall was reported

    def row(self, row: UpdateRow) -> None:
        """One more update."""
        if self._last and row.seconds:
            passed = row.time - self._last
            self._longest = max(self._longest, passed)
            self._recent.append(row.seconds)  # `other` is a part of it
            self._parts = None
        self._last = row.time
        if row.fingerprint is not None:
            digest = hashlib.blake2b(array("d", row.fingerprint).tobytes(), digest_size=8)
            self._prints[row.index] = digest.hexdigest()
            if len(self._prints) > PRINTS:
                del self._prints[sorted(self._prints)[PRINTS // 3]]

    def crashed(self, trace: TracebackType | None) -> None:
        """The program raised: at the user's innermost line of this traceback."""
        while trace is not None:
            code = trace.tb_frame.f_code
            if is_user_file(code.co_filename):
                self._crashed_at = locate(code, trace.tb_lasti, trace.tb_lineno)
            trace = trace.tb_next

    def beat(self, folder: Path, rank: int, world: int, ended: str = "") -> None:
        """Write down where this rank is; on rank 0, say so when nothing moves any more."""
        self._look()
        if ended:
            self._whereabouts.stop()
        elif world > 1:
            self._whereabouts.start()
        doing, at = ("", self._crashed_at) if ended else where()
        state = RankState(
            rank=rank,
            world=world,
            host=platform.node(),
            pid=os.getpid(),
            started=self._started,
            written=time.time(),
            ended=ended,
            updates=self._progress.updates,
            last_update=self._last,
            longest=self._longest,
            doing=doing,
            at=at,
            busy=self._busy(),
            collectives=self._collectives.count,
            met=self._collectives.met,
            seconds=self._seconds(),
            lines=self._whereabouts.lines,
            prints=self._prints,
            findings=[f.as_dict() for f in self._found()[:FINDINGS]],
            launch=self._launch[0],
            attempt=self._launch[1],
            noted=len(self._observed.all),
        )
        write_rank(folder, state)
        if world > 1 and not ended:
            self._whereabouts.compare(_uneven(state, folder))
        if rank == 0 and world > 1 and not ended:
            self._tell(folder)

    def _look(self) -> None:
        """Updates that are counted but not recorded (while watching rests) are updates too."""
        steps = self._made()
        if steps != self._steps:
            self._steps = steps
            self._last = max(self._last, time.time() - FLUSH_SECONDS)

    def _made(self) -> int:
        return self._progress.steps + sum(self._progress.at_rest.values())

    def _tell(self, folder: Path) -> None:
        idle = time.time() - (self._last or self._started)
        if idle < max(STALLED, 10 * self._longest) or self._said == (self._last or 1.0):
            return
        self._said = self._last or 1.0
        text = stall_text(read_ranks([folder]))
        if text:
            print(f"fallline: no update for {idle:.0f} s. {text}", file=sys.stderr, flush=True)

    def _busy(self) -> float:
        before, self._cpu = self._cpu, (time.monotonic(), time.process_time())
        passed = self._cpu[0] - before[0]
        return round((self._cpu[1] - before[1]) / passed, 3) if passed > 0 else 0.0

    def _seconds(self) -> dict[str, float]:
        """Of an update, by part: the median of the recent ones."""
        if self._parts is None:  # at rest no update is recorded, and there is nothing new to count
            self._parts = {
                part: statistics.median(r.get(part, 0.0) for r in self._recent)
                for part in PARTS
                if self._recent
            }
        found = dict(self._parts)
        if self._collectives.waits:
            waited = list(self._collectives.waits)
            found["wait"] = statistics.median(w for w, _ in waited)
            found["meet"] = statistics.median(m for _, m in waited)
        return found


def _uneven(state: RankState, folder: Path) -> bool:
    """Whether this rank takes more or less time for an update than the next one, whose file is beside its own."""
    other = read_rank(folder / f"rank{(state.rank + 1) % state.world}.json")
    mine, its = state.own, other.own if other is not None else {}
    both = mine.keys() & its.keys()
    apart = abs(sum(mine[p] for p in both) - sum(its[p] for p in both))
    whole = sum(state.seconds.get(part, 0.0) for part in PARTS)
    return apart >= max(UNEVEN_SECONDS, UNEVEN * whole)
