"""Judging a run while it is running and when it ends, beside the training thread."""

from __future__ import annotations

import json
import sys
import threading
import time
from collections.abc import Callable
from time import thread_time
from typing import Protocol

from fallline.events import AutocastOff, Backward, Clip, Event, Forward, Step, Trace
from fallline.finding import Finding
from fallline.rule import Rule
from fallline.runs.findings import findings_text
from fallline.watcher.log import EventLog
from fallline.watcher.objects import Objects
from fallline.watcher.recording import Recording
from fallline.watcher.trace import build_trace

__all__ = ["Judge", "Verdict"]

# After so many updates the events are judged for the first times; later when something new was kept.
AFTER = frozenset({4, 20, 100})
EVERY_SECONDS = 10.0
TIMES = (
    500  # a pause lasts so many times what judging took: it may cost a fifth of a percent of a run
)

OnFailure = Callable[[Rule, Exception], None]


class Verdict(Protocol):
    """The rules over events, which the watcher does not know: `fallline.verdict.judge`."""

    def __call__(self, trace: Trace, *, on_failure: OnFailure) -> list[Finding]: ...


class Judge:
    """Judges one run. What is found is recorded as soon as it is known."""

    def __init__(
        self, verdict: Verdict, log: EventLog, objects: Objects, recording: Recording
    ) -> None:
        self._verdict = verdict
        self._log = log
        self._objects = objects
        self._recording = recording
        self.findings: list[Finding] = []
        self._wake = threading.Event()
        self._over = False
        self._thread: threading.Thread | None = None
        self._judged = 0
        self._last = time.monotonic()
        self._pause = EVERY_SECONDS
        self._unsound: set[str] = set()  # rules that have failed

    def stepped(self, steps: int) -> None:
        """One more update: wake the background thread when it is time."""
        structure = self._log.structure
        due = steps in AFTER or (
            structure > self._judged and steps > 4 and time.monotonic() - self._last > self._pause
        )
        if due:
            self._judged, self._last = structure, time.monotonic()
            if self._thread is None:
                self._thread = threading.Thread(
                    target=self._work, name="fallline-judge", daemon=True
                )
                self._thread.start()
            self._wake.set()

    def _work(self) -> None:
        while True:
            self._wake.wait()
            self._wake.clear()
            if self._over:
                return
            self._guarded(False)

    def _guarded(self, complete: bool) -> None:
        """Judging may fail; watching continues all the same."""
        started = thread_time()
        try:
            self._look(complete)
        except Exception as error:
            print(f"fallline: the events could not be judged ({error!r})", file=sys.stderr)
        took = thread_time() - started
        self._recording.took(took)
        self._pause = max(EVERY_SECONDS, TIMES * took)

    def _look(self, complete: bool) -> None:
        trace = build_trace(self._log, self._objects, complete=complete)
        self.findings = self._verdict(trace, on_failure=self._failed)
        self._recording.judged(self.findings, json.loads(findings_text(self.findings)))

    def _failed(self, rule: Rule, error: Exception) -> None:
        """A rule that fails must not take the others with it; it is reported once."""
        if rule.code not in self._unsound:
            self._unsound.add(rule.code)
            print(f"fallline: rule {rule.code} failed ({error!r})", file=sys.stderr)

    def finish(self, complete: bool = True) -> None:
        """Judge the whole run, in the calling thread."""
        self._over = True
        self._wake.set()
        if any(map(_trains, self._log.events)):
            self._recording.open()
            self._guarded(complete)


def _trains(event: Event) -> bool:
    """A program that only loads or evaluates leaves no run behind."""
    match event:
        case Backward() | Step() | Clip() | AutocastOff():
            return True
        case Forward():
            return bool(event.grad)
    return False
