"""What a run says while it is running: the first finding of each code at once, and on a terminal one line of numbers.

A finding is printed once and stays, in a log file too. The line of numbers (update, loss, norm, clipped share, loss scale, findings)
is there only when a person looks, is redrawn at most once a second, and stays out of the way: before the script writes
anything it is taken away, and while a progress bar or half a line is there, it is not drawn at all.
"""

from __future__ import annotations

import os
import shutil
import sys
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any, TextIO

from fallline.conclude import measured
from fallline.finding import Finding, Severity
from fallline.runs.series import Rank, Series
from fallline.runs.update import UpdateRow
from fallline.show.numbers import number
from fallline.show.terminal import SEVERITY_STYLE, Paint, counted, wants_colour

__all__ = ["Live", "LiveLine"]

EVERY_SECONDS = 1.0
# The numeric rules look at the run so far this often, and never longer than this share of the time.
JUDGED_SECONDS = 5.0
JUDGED_SHARE = 0.002


class Live:
    """One run, while it is running. `row` is called in the recorder's thread, everything else in the script's.

    `found` gives the findings from events, `observed` what the search for the origin of a NaN has seen.
    """

    def __init__(
        self,
        stream: TextIO,
        found: Callable[[], Iterable[Finding]] = tuple,
        observed: Callable[[], Sequence[dict[str, Any]]] = tuple,
        meta: dict[str, Any] | None = None,
        line: LiveLine | None = None,
    ) -> None:
        self.stream = stream
        self.series = Series(ranks=[Rank(0, dict(meta or {}))])
        self.line = line
        self._found = found
        self._observed = observed
        self._measured: list[Finding] = []  # at the last look
        self._lasting: set[str] = set()  # codes, at the last two looks
        self._certain: list[Finding] = []
        self._said: set[str] = set()
        self._paint = Paint(wants_colour("auto", stream))
        self._draw_next = time.monotonic() + EVERY_SECONDS
        self._judge_next = time.monotonic() + JUDGED_SECONDS
        self._observed_before = 0

    @classmethod
    def on_stderr(
        cls,
        found: Callable[[], Iterable[Finding]] = tuple,
        observed: Callable[[], Sequence[dict[str, Any]]] = tuple,
        meta: dict[str, Any] | None = None,
    ) -> Live | None:
        """Findings go to stderr; so does the line, where stderr is a terminal that can take a line back."""
        stream = sys.stderr
        if stream is None:
            return None
        return cls(stream, found, observed, meta, LiveLine.on_terminal(stream))

    def stop(self) -> None:
        """The run is over, and the report of its end comes."""
        if self.line is not None:
            self.line.stop()

    def row(self, row: UpdateRow) -> None:
        """One more update, its numbers known."""
        self.series.append(row)
        now = time.monotonic()
        if now >= self._judge_next:
            self._judge(now)
        self._look_at_observed()
        self._say_new()
        if self.line is not None and now >= self._draw_next:
            self._draw_next = now + EVERY_SECONDS
            self.line.draw(self.text(row))

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
        found = {
            f.key: f.severity.value for f in (*self._found(), *self._certain, *self._measured)
        }.values()
        kinds = [(kind, sum(f == kind for f in found)) for kind in ("error", "warning")]
        return [self._paint(counted(n, kind), SEVERITY_STYLE[kind]) for kind, n in kinds if n]

    def _judge(self, now: float) -> None:
        """Let the numeric rules look at the run so far."""
        started = time.thread_time()
        before = {f.code for f in self._measured}
        self._measured = list(measured(self.series))
        self._lasting = {f.code for f in self._measured} & before
        took = time.thread_time() - started
        self._judge_next = now + max(JUDGED_SECONDS, took / JUDGED_SHARE)

    def _look_at_observed(self) -> None:
        """What was seen to happen is certain, and said at once; numbers must look wrong twice in a row."""
        observed = list(self._observed())
        if len(observed) > self._observed_before:
            self._observed_before = len(observed)
            self.series.ranks[0].meta["observed"] = observed
            codes = {entry["code"] for entry in observed}
            self._certain = [f for f in measured(self.series) if f.code in codes]

    def _say_new(self) -> None:
        lasting = (f for f in self._measured if f.code in self._lasting)
        for finding in (*self._found(), *self._certain, *lasting):
            if finding.code not in self._said and finding.severity is not Severity.INFO:
                self._said.add(finding.code)
                self._say(finding)

    def _say(self, finding: Finding) -> None:
        code = self._paint(finding.code, SEVERITY_STYLE[finding.severity.value])
        text = f"fallline: {finding.at.path}:{finding.at.line}: {code} {finding.name}: {finding.message}\n"
        if self.line is not None:
            self.line.say(text)
            return
        try:
            self.stream.write(text)
            self.stream.flush()
        except (OSError, ValueError):
            pass  # nobody reads it; it is in the report of the run


class LiveLine:
    """A line on a terminal that is taken away before the script writes there."""

    def __init__(self, stream: TextIO) -> None:
        self.stream = stream
        self._pid = os.getpid()
        self._lock = threading.Lock()
        self._drawn = False
        self._free = True  # the cursor is at the start of a line
        self._over = False
        self._streams: list[tuple[str, TextIO, _Stream]] = []

    @classmethod
    def on_terminal(cls, stream: TextIO) -> LiveLine | None:
        """The line, started, where this is a terminal that can take a line back."""
        if not stream.isatty() or os.environ.get("TERM", "dumb") == "dumb":
            return None
        line = cls(stream)
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
        """Take the line away and give the script's streams back. Rows that are still on their way draw nothing."""
        self._over = True
        self.step_aside("")
        for name, original, watched in self._streams:
            if getattr(sys, name) is watched:
                setattr(sys, name, original)
        self._streams.clear()

    def draw(self, text: str) -> None:
        """Show this instead of what the line showed, where the terminal is free."""
        if self._over or not self._free or not self._lock.acquire(blocking=False):
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

    def say(self, text: str) -> None:
        """Print whole lines that stay."""
        with self._lock:
            begin = "\r\x1b[2K" if self._drawn else "" if self._free else "\n"
            try:
                self.stream.write(begin + text)
                self.stream.flush()
                self._drawn, self._free = False, True
            except (OSError, ValueError):
                self._free = False

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
