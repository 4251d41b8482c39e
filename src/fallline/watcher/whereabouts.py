"""Where the training thread is: a look at its stack from a thread of our own. The training thread does nothing for it.

With several ranks, one that is slower than the others can be asked on which line it spends the time. It is looked at some ten times
a second at the beginning and when the ranks have become uneven, until that is enough to say where, else about once: each look wakes a
thread, which takes the interpreter from the one that trains. A rank that hangs makes no update, and looks count only once their update
is made.
"""

from __future__ import annotations

import os
import random
import sys
import threading
from collections import Counter, deque
from collections.abc import Callable
from time import thread_time
from types import FrameType

from fallline.location import Location
from fallline.runs.rank import Spent
from fallline.taps.frames import place
from fallline.taps.tap import thread

__all__ = ["Whereabouts", "where"]

# Seconds between two looks: always the same could fall in step with the updates.
OFTEN, SELDOM = (0.05, 0.15), (0.5, 1.5)
FIRST = 50  # looks that are made often: a run may be over soon
CLOSELY = 150  # the same, once the ranks are uneven: enough to see a line that takes a fiftieth of the time
KEPT = 600  # looks
LINES = 12
_DISTRIBUTED = os.path.join("torch", "distributed", "")
# what a file of torch's says about what is going on; the innermost counts
_DOING = (
    (os.path.join("torch", "autograd", ""), "backward"),
    (os.path.join("torch", "utils", "data", ""), "data"),
    (os.path.join("torch", "optim", ""), "step"),
    (os.path.join("torch", "_dynamo", ""), "compile"),
    (os.path.join("torch", "_inductor", ""), "compile"),
)


class Whereabouts:
    """The user's lines that the training thread was seen on, over the recent updates."""

    def __init__(self, steps: Callable[[], int], took: Callable[[float], None]) -> None:
        """`steps`: how many were made so far; `took`: told how many seconds of a processor a look has used."""
        self._steps = steps
        self._took = took
        self._seen: deque[Location | None] = deque(maxlen=KEPT)
        self._now: deque[Location | None] = deque(maxlen=KEPT)  # of the update in progress
        self._made = 0
        self._stopped = threading.Event()
        self._thread: threading.Thread | None = None
        self._pause = random.Random(0)  # the script's own randomness is left alone
        self._looks = 0
        self._closely = False
        self._until = FIRST  # so many looks in all are made often
        self._again = 0  # so many are made before it may be looked at closely once more

    def start(self) -> None:
        if self._thread is None:
            self._thread = threading.Thread(target=self._work, name="fallline-looks", daemon=True)
            self._thread.start()

    def stop(self) -> None:
        self._stopped.set()

    def compare(self, uneven: bool) -> None:
        """Whether this rank and another one take different times for an update."""
        if uneven and not self._closely:
            if self._looks > FIRST:
                self._seen.clear()  # how it was before would hide how it is
            if self._looks >= self._again:
                self._until = max(self._looks, FIRST) + CLOSELY
                self._again = self._until + KEPT
        elif not uneven:
            self._until = min(self._until, max(self._looks, FIRST))
        self._closely = uneven

    @property
    def lines(self) -> list[Spent]:
        """Those that take most, with their share of the time."""
        seen = list(self._seen)
        counts = Counter(at for at in seen if at is not None)
        return [Spent(at, count / len(seen)) for at, count in counts.most_common(LINES)]

    def _work(self) -> None:
        before = thread_time()
        while not self._stopped.wait(self._pause.uniform(*self._between())):
            self._look()
            now = thread_time()
            self._took(now - before)
            before = now

    def _between(self) -> tuple[float, float]:
        return OFTEN if self._looks < self._until else SELDOM

    def _look(self) -> None:
        self._looks += 1
        if (made := self._steps()) != self._made:
            if self._made:  # what comes before the first update is not part of one
                self._seen.extend(self._now)
            self._made = made
            self._now.clear()
        self._now.append(where()[1])


def where() -> tuple[str, Location | None]:
    """What the training thread is doing, and the user's line it does it from."""
    ident = thread.ident or threading.main_thread().ident
    frame = sys._current_frames().get(ident or 0)
    if frame is None:
        return "", None
    at = place(frame)
    return _doing(frame), at.at if at is not None else None


def _doing(frame: FrameType) -> str:
    """The outermost function of torch.distributed that it is in, else the kind of torch's code."""
    here: FrameType | None = frame
    found = met = ""
    while here is not None:
        name = here.f_code.co_filename
        if _DISTRIBUTED in name and name.endswith("distributed_c10d.py"):
            met = here.f_code.co_name
        elif not found:
            found = next((doing for part, doing in _DOING if part in name), "")
        here = here.f_back
    return met or found
