"""Judging a run while it goes on and when it ends, beside the training thread."""

from __future__ import annotations

import sys
import threading
import time
from typing import TYPE_CHECKING, Any

from fallline.event import Trace
from fallline.finding import Finding
from fallline.rule import Rule, all_rules
from fallline.verdict import judge
from fallline.watcher.taps_trace import build_trace

if TYPE_CHECKING:
    from fallline.watcher.recorder import UpdateRow
    from fallline.watcher.session import Session

__all__ = ["Judge"]

# After so many updates the events are judged for the first times; later when something new was kept.
AFTER = frozenset({4, 20, 100})
EVERY_SECONDS = 10.0
WAIT_FOR_RANKS = 10.0


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
        self._reported: set[Any] = set()
        self._unsound: set[str] = set()

    def stepped(self) -> None:
        """One more update: wake the background thread when it is time."""
        count, structure = self.session.steps, self.session.log.structure
        due = count in AFTER or (structure > self._judged and count > 4 and time.monotonic() - self._last > EVERY_SECONDS)
        if due:
            self._judged, self._last = structure, time.monotonic()
            if self._thread is None:
                self._thread = threading.Thread(target=self._work, name="fallline-judge", daemon=True)
                self._thread.start()
            self._wake.set()

    def listen(self, row: UpdateRow) -> None:
        """Called by the recorder's thread for every row whose numbers have arrived."""
        if self.session.live is not None:
            self.session.live.row(row)

    def _work(self) -> None:
        while True:
            self._wake.wait()
            self._wake.clear()
            if self._over:
                return
            self.session.safely(self._look, False)

    def _look(self, complete: bool) -> None:
        trace = build_trace(self.session, complete=complete)
        self.findings = judge(trace, self._sound(trace))
        recorder = self.session.recorder
        for finding in self.findings if recorder is not None else ():
            if finding.key not in self._reported:
                self._reported.add(finding.key)
                recorder.finding(finding)  # type: ignore[union-attr]

    def _sound(self, trace: Trace) -> list[Rule]:
        """The rules that can judge this trace: one that fails must not take the others with it."""
        sound = []
        for rule in all_rules():
            if rule._defines("check"):
                try:
                    list(rule.check(trace))
                except Exception as error:
                    if rule.code not in self._unsound:
                        self._unsound.add(rule.code)
                        print(f"fallline: rule {rule.code} failed ({type(error).__name__}: {error})", file=sys.stderr)
                    continue
                sound.append(rule)
        return sound

    def finish(self, complete: bool = True) -> None:
        """Judge the whole run, in the calling thread."""
        self._over = True
        self._wake.set()
        if self.session.log.events:
            self.session.open()
            self._look(complete)
