"""Where the time of an update goes on an accelerator: events in its queue, read once they have passed.

The host runs ahead of the device: a clock on the host shows how long it took to hand out work. Each mark ends one part of the
update and begins the next, so the parts add up to the whole. Nobody waits: the thread that writes the run reads the marks.
"""

from __future__ import annotations

import math
import time
from typing import Any

import torch

__all__ = ["DeviceClock", "DeviceSpans"]

MARK_SECONDS = 5e-6  # what one mark costs the host
SHARE = 0.002  # of the time of an update, at most, for its marks
MOST = 400  # marks in one update: a long accumulation is not timed
PATIENCE = 60.0  # seconds for the device to come to the last mark


class DeviceSpans:
    """The marks of one update, until they are read."""

    def __init__(self, marks: list[tuple[str, Any]]) -> None:
        self.marks = marks

    def read(self) -> dict[str, float]:
        """Seconds by part; nothing where the device does not get there. Waits: not for the thread that trains."""
        last, until = self.marks[-1][1], time.monotonic() + PATIENCE
        while not last.query():
            if time.monotonic() > until:
                return {}
            time.sleep(0.001)
        parts = dict.fromkeys(("data", "forward", "backward", "step", "other"), 0.0)
        for (part, begin), (_, end) in zip(self.marks, self.marks[1:], strict=False):
            parts[part] += begin.elapsed_time(end) / 1000
        return parts


class DeviceClock:
    """Marks the parts of an update as the device comes to them."""

    def __init__(self) -> None:
        self._marks: list[tuple[str, Any]] = []
        self._lost = True

    def begin(self) -> None:
        """An update has ended; the next one is timed."""
        self._marks, self._lost = [], False
        self.mark("other")

    def mark(self, part: str) -> None:
        """What the device does from here on belongs to this part."""
        if self._lost or len(self._marks) >= MOST or torch.cuda.is_current_stream_capturing():
            self._lost = True  # recorded into a graph, an event would never pass
            return
        event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        event.record()
        self._marks.append((part, event))

    def end(self) -> DeviceSpans | None:
        """The update has ended; its parts, where all of it was marked."""
        self.mark("other")
        return None if self._lost else DeviceSpans(self._marks)

    def rests(self, seconds: float) -> int:
        """How many updates of this length to leave out, so that marking costs next to nothing."""
        return max(0, math.ceil(MARK_SECONDS * len(self._marks) / (SHARE * max(seconds, 1e-6))) - 1)
