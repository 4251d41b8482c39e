"""One line on the terminal while a run goes on: update, loss, norm, clipped share, loss scale, findings.

It is there only when a person looks (stderr is a terminal), is redrawn at most once a second, and stays out of the
way: before the script writes anything it is taken away, and while a progress bar or half a line stands there, it
is not drawn at all.
"""

from __future__ import annotations

import os
import shutil
import sys
import threading
import time
from collections.abc import Callable, Iterable
from typing import Any, TextIO

from fallline.finding import Finding
from fallline.runs.series import Series
from fallline.runs.update import UpdateRow
from fallline.show.numbers import number
from fallline.show.terminal import SEVERITY_STYLE, Paint, counted, wants_colour

__all__ = ["LiveLine"]

EVERY_SECONDS = 1.0
# The numeric rules look at the run so far this often, and never longer than this share of the time.
JUDGED_SECONDS = 5.0
JUDGED_SHARE = 0.005


class LiveLine:
    """The line of one run. `row` is called in the recorder's thread, everything else in the script's."""

    def __init__(self, stream: TextIO, found: Callable[[], Iterable[Finding]] = tuple) -> None:
        self.stream = stream
        self.series = Series()
        self._found = found
        self._measured: list[Finding] = []
        self._paint = Paint(wants_colour("auto", stream))
        self._pid = os.getpid()
        self._lock = threading.Lock()
        self._drawn = False
        self._free = True  # the cursor is at the start of a line
        self._next = time.monotonic() + EVERY_SECONDS
        self._judge_next = time.monotonic() + JUDGED_SECONDS
        self._streams: list[tuple[str, TextIO, _Stream]] = []

    @classmethod
    def on_terminal(cls, found: Callable[[], Iterable[Finding]] = tuple) -> LiveLine | None:
        """The live line, started, where stderr is a terminal that can take a line back."""
        stream = sys.stderr
        if stream is None or not stream.isatty() or os.environ.get("TERM", "dumb") == "dumb":
            return None
        line = cls(stream, found)
        line.start()
        return line

    def start(self) -> None:
        """Stand between the script and its terminal, to step aside in time."""
        for name in ("stdout", "stderr"):
            original = getattr(sys, name)
            if original is not None and original.isatty():
                watched = _Stream(original, self)
                setattr(sys, name, watched)
                self._streams.append((name, original, watched))

    def stop(self) -> None:
        """Take the line away and give the script's streams back."""
        self.step_aside("")
        for name, original, watched in self._streams:
            if getattr(sys, name) is watched:
                setattr(sys, name, original)
        self._streams.clear()

    def row(self, row: UpdateRow) -> None:
        """One more update, its numbers known."""
        self.series.append(row)
        now = time.monotonic()
        if now >= self._judge_next:
            self._judge(now)
        if now >= self._next:
            self._next = now + EVERY_SECONDS
            self._draw(self.text(row))

    def text(self, row: UpdateRow) -> str:
        """What the line says after this update."""
        totals = self.series.track(0, row.optimizer).totals
        parts = [f"update {row.index:,}", f"loss {number(row.loss)}"]
        norm = row.clip_norm if row.clip_norm is not None else row.grad_norm
        if norm is not None:
            parts.append(f"norm {number(norm)}")
        if totals.get("clips"):
            parts.append(f"clipped {totals['clipped'] / totals['clips']:.0%}")
        if row.scale is not None:
            parts.append(f"scale {number(row.scale)}")
        if totals.get("skipped"):
            parts.append(f"skipped {totals['skipped']:,}")
        return "  ".join(["fallline", *parts, *self._counts()])

    def _counts(self) -> list[str]:
        found = {f.key: f.severity.value for f in (*self._found(), *self._measured)}.values()
        kinds = [(kind, sum(f == kind for f in found)) for kind in ("error", "warning")]
        return [self._paint(counted(n, kind), SEVERITY_STYLE[kind]) for kind, n in kinds if n]

    def _judge(self, now: float) -> None:
        from fallline.watcher.conclude import measured

        self._measured = list(measured(self.series))
        took = time.monotonic() - now
        self._judge_next = now + max(JUDGED_SECONDS, took / JUDGED_SHARE)

    def _draw(self, text: str) -> None:
        if not self._free or not self._lock.acquire(blocking=False):
            return
        try:
            width = shutil.get_terminal_size().columns - 1
            shown = text if len(text) <= width else text[:width]
            self.stream.write(f"\r\x1b[2K{shown}")
            self.stream.flush()
            self._drawn = True
        except (OSError, ValueError):
            self._free = False  # the terminal is gone
        finally:
            self._lock.release()

    def step_aside(self, text: str) -> None:
        """The script is about to write this."""
        if os.getpid() != self._pid:
            return  # a forked child draws nothing and takes nothing away
        # never wait long for our own thread: the script's output comes first
        held = self._lock.acquire(timeout=0.1)
        try:
            if self._drawn:
                self._drawn = False
                self.stream.write("\r\x1b[2K")
                self.stream.flush()
            if text:
                self._free = text.endswith("\n")
        finally:
            if held:
                self._lock.release()


class _Stream:
    """The script's stream, in all but this: what it writes makes the live line step aside first."""

    def __init__(self, original: TextIO, line: LiveLine) -> None:
        self._original = original
        self._line = line

    def write(self, text: str) -> int:
        self._line.step_aside(text)
        return self._original.write(text)

    def writelines(self, lines: Iterable[str]) -> None:
        for line in lines:
            self.write(line)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._original, name)

    def __iter__(self) -> Any:
        return iter(self._original)
