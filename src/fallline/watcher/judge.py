"""Judging a run while it goes on and when it ends, beside the training thread."""

from __future__ import annotations

import json
import sys
import threading
import time
from typing import TYPE_CHECKING

from fallline.events import Kind
from fallline.finding import Finding
from fallline.rule import Rule
from fallline.runs.findings import findings_text
from fallline.verdict import judge
from fallline.watcher.taps_trace import build_trace

if TYPE_CHECKING:
    from fallline.runs.update import UpdateRow
    from fallline.watcher.session import Session

__all__ = ["Judge"]

# After so many updates the events are judged for the first times; later when something new was kept.
AFTER = frozenset({4, 20, 100})
EVERY_SECONDS = 10.0
# A program that only loads or evaluates leaves no run behind.
_TRAINING = frozenset({Kind.BACKWARD, Kind.STEP, Kind.CLIP, Kind.AUTOCAST_OFF})


class Judge:
    """Judges one session. Findings go to the recorder as soon as they are known."""

    def __init__(self, session: Session) -> None:
        self.session = session
        self.findings: list[Finding] = []
        self._wake = threading.Event()
        self._over = False
        self._thread: threading.Thread | None = None
        self._judged = 0
        self._last = time.monotonic()
        self._unsound: set[str] = set()

    def stepped(self) -> None:
        """One more update: wake the background thread when it is time."""
        count, structure = self.session.steps, self.session.log.structure
        due = count in AFTER or (
            structure > self._judged and count > 4 and time.monotonic() - self._last > EVERY_SECONDS
        )
        if due:
            self._judged, self._last = structure, time.monotonic()
            if self._thread is None:
                self._thread = threading.Thread(
                    target=self._work, name="fallline-judge", daemon=True
                )
                self._thread.start()
            self._wake.set()

    def listen(self, row: UpdateRow) -> None:
        """Called by the recorder's thread for every row whose numbers have arrived."""
        if self.session.loggers is not None:
            self.session.loggers.row(row)
        if self.session.live is not None:
            self.session.live.row(row)

    def _work(self) -> None:
        while True:
            self._wake.wait()
            self._wake.clear()
            if self._over:
                return
            self._guarded(False)

    def _guarded(self, complete: bool) -> None:
        """Judging may fail; watching goes on all the same."""
        try:
            self._look(complete)
        except Exception as error:
            print(f"fallline: the events could not be judged ({error!r})", file=sys.stderr)

    def _look(self, complete: bool) -> None:
        trace = build_trace(self.session, complete=complete)
        self.findings = judge(trace, on_failure=self._failed)
        if self.session.loggers is not None:
            self.session.loggers.judged(self.findings)
        if self.session.recorder is not None:
            # written anew each time: what the beginning seemed to show, the whole may not bear out
            self.session.recorder.describe("judged", json.loads(findings_text(self.findings)))

    def _failed(self, rule: Rule, error: Exception) -> None:
        """A rule that fails must not take the others with it; it is reported once."""
        if rule.code not in self._unsound:
            self._unsound.add(rule.code)
            print(f"fallline: rule {rule.code} failed ({error!r})", file=sys.stderr)

    def finish(self, complete: bool = True) -> None:
        """Judge the whole run, in the calling thread."""
        self._over = True
        self._wake.set()
        if any(
            e.kind in _TRAINING or (e.kind is Kind.FORWARD and e.facts.get("grad"))
            for e in self.session.log.events
        ):
            self.session.open()
            self._guarded(complete)
