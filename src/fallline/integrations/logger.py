"""Numbers and findings of a run, handed on to where people already look.

A logger is anything with these two methods:

    numbers(step, {"fallline/loss": 0.31, "fallline/grad_norm": 1.7, ...})
    finding(finding)

It is called in a thread of its own, which training never waits for. A logger that fails is switched off with one warning.
"""

from __future__ import annotations

import importlib.util
import math
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable
from importlib import import_module
from pathlib import Path
from queue import Full, Queue
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from fallline.errors import UsageError
from fallline.finding import Finding

if TYPE_CHECKING:
    from fallline.runs.update import UpdateRow
    from fallline.watcher.session import Session

__all__ = ["NAMES", "LogThread", "Logger", "Sink", "log_session", "loggers_of"]

# name → (package to install, class)
NAMES = {
    "tensorboard": ("tensorboard", "TensorBoard"),
    "wandb": ("wandb", "Wandb"),
    "mlflow": ("mlflow", "MLflow"),
    "trackio": ("trackio", "Trackio"),
    "opentelemetry": ("opentelemetry", "OpenTelemetry"),
}
RECENT = 100  # updates that the share of clipped ones is taken over
QUEUE_LIMIT = 10_000
# All of the first updates are logged; later ones as this share of the time allows, but always those that went wrong.
ALWAYS_BELOW = 200
CLOSE_SECONDS = 120.0  # on a busy machine it takes a minute to import and start some loggers


@runtime_checkable
class Logger(Protocol):
    """Where numbers and findings go."""

    def numbers(self, step: int, numbers: dict[str, float]) -> None:
        """The numbers of one update, counted from 0."""

    def finding(self, finding: Finding) -> None:
        """Something is wrong with this run."""


class Sink(Logger):
    """A logger that uses the run which the script has open, or opens one of its own, on this machine."""

    def attach(self) -> None:
        """In the training thread, at the first update: take the script's own run, if there is one. Imports nothing."""

    def open(self, folder: Path) -> None:
        """In the logging thread, before anything is logged. `folder` is fallline's run folder."""

    def close(self) -> None:
        """The run is over; what is our own ends, what is the script's stays open."""


def loggers_of(log: Any) -> list[Logger]:
    """The loggers that `log=` asks for, or an error that says what is wrong with it."""
    asked = list(log) if isinstance(log, list | tuple) else [log]
    return [_named(item) if isinstance(item, str) else _checked(item) for item in asked]


def _named(name: str) -> Logger:
    if name not in NAMES:
        raise UsageError(f"log={name!r} is not known: say {', '.join(map(repr, NAMES))}")
    package, kind = NAMES[name]
    if importlib.util.find_spec(package) is None:
        raise UsageError(f"log={name!r} needs {package}: pip install {package}")
    made: Logger = getattr(import_module(f"fallline.integrations.{name}"), kind)()
    return made


def _checked(item: Any) -> Logger:
    if not isinstance(item, Logger):
        raise UsageError(
            f"log takes names ({', '.join(NAMES)}) or objects with the methods numbers(step, numbers) and finding(finding), "
            f"not {type(item).__name__}"
        )
    return item


def log_session(session: Session, log: Any) -> None:
    """Let a session's numbers and findings go to these loggers."""
    session.loggers = LogThread(loggers_of(log), session.options.budget)
    if session.recorder is not None and session.rank == 0:
        session.loggers.begin(session.recorder.folder)


class LogThread:
    """Feeds the loggers of one run, on rank 0. Nothing in here raises into the program that trains."""

    def __init__(self, loggers: Iterable[Logger], budget: float = 0.01) -> None:
        self._loggers = list(loggers)
        self._budget = budget
        self._queue: Queue[Callable[[Logger], None] | None] = Queue(QUEUE_LIMIT)
        self._thread: threading.Thread | None = None
        self._clips: dict[str, deque[bool]] = {}
        self._skipped: dict[str, int] = {}
        self._first: str | None = None  # the optimizer whose numbers have no name before them
        self._rows = 0
        self._spent = 0.0
        self._started = time.monotonic()
        self._seen: set[Any] = set()
        self._told: set[Any] = set()

    def begin(self, folder: Path) -> None:
        """The first update was made: in the training thread, where the script's own runs can be seen."""
        self._each(lambda logger: logger.attach() if isinstance(logger, Sink) else None)
        self._thread = threading.Thread(
            target=self._work, args=(folder,), name="fallline-log", daemon=True
        )
        self._thread.start()

    def row(self, row: UpdateRow) -> None:
        """One more update, its numbers known. Called by the recorder's thread."""
        numbers = self._numbers(row)
        self._rows += 1
        if self._rows == ALWAYS_BELOW:
            self._spent, self._started = 0.0, time.monotonic()
        wrong = row.skipped or (row.loss is not None and not math.isfinite(row.loss))
        affordable = self._spent <= self._budget * (time.monotonic() - self._started)
        if self._rows <= ALWAYS_BELOW or wrong or affordable:
            self._put(lambda logger: logger.numbers(row.index, numbers))

    def judged(self, findings: Iterable[Finding]) -> None:
        """What the events show so far. Told when it is seen twice in a row: a beginning can mislead."""
        found = {f.key: f for f in findings}
        for key in found.keys() & self._seen:
            self._tell(found[key])
        self._seen = set(found)

    def close(self, findings: Iterable[Finding]) -> None:
        """The run is over, and this is what was found. Waits for the loggers, but not for ever."""
        if self._thread is None:
            return
        for finding in findings:
            self._tell(finding)
        try:
            self._queue.put(None, timeout=CLOSE_SECONDS)
            self._thread.join(CLOSE_SECONDS)
        except Full:
            pass
        if self._thread.is_alive():
            print("fallline: a logger does not answer; it is left behind", file=sys.stderr)
        self._thread = None

    def _numbers(self, row: UpdateRow) -> dict[str, float]:
        """The scalars of one update. A second optimizer's are named after it."""
        self._first = self._first or row.optimizer
        prefix = "fallline/" if row.optimizer == self._first else f"fallline/{row.optimizer}/"
        norm = row.clip_norm if row.clip_norm is not None else row.grad_norm
        if norm is None and row.sample is not None:
            norm = row.sample.total_norm()
        self._skipped[row.optimizer] = self._skipped.get(row.optimizer, 0) + row.skipped
        found = {
            "loss": row.loss,
            "grad_norm": norm,
            "clip_share": self._clip_share(row),
            "loss_scale": row.scale,
            "lr": row.lr,
            "skipped": self._skipped[row.optimizer],
        }
        return {f"{prefix}{name}": float(v) for name, v in found.items() if v is not None}

    def _clip_share(self, row: UpdateRow) -> float | None:
        """The share of the last updates that were clipped; None where nothing clips."""
        if row.clip_norm is None or row.clip_threshold is None or math.isinf(row.clip_threshold):
            return None
        recent = self._clips.setdefault(row.optimizer, deque(maxlen=RECENT))
        recent.append(row.clip_norm > row.clip_threshold)
        return sum(recent) / len(recent)

    def _tell(self, finding: Finding) -> None:
        if finding.key not in self._told:
            self._told.add(finding.key)
            self._put(lambda logger: logger.finding(finding))

    def _put(self, action: Callable[[Logger], None]) -> None:
        if self._thread is not None and not self._queue.full():
            self._queue.put(action)  # full: a logger that hangs loses numbers, nobody waits for it

    def _work(self, folder: Path) -> None:
        self._each(lambda logger: logger.open(folder) if isinstance(logger, Sink) else None)
        while (action := self._queue.get()) is not None:
            started = time.thread_time()
            self._each(action)
            self._spent += time.thread_time() - started
        self._each(lambda logger: logger.close() if isinstance(logger, Sink) else None)

    def _each(self, action: Callable[[Logger], None]) -> None:
        for logger in list(self._loggers):
            try:
                action(logger)
            except Exception as error:
                self._loggers.remove(logger)
                print(
                    f"fallline: logging to {type(logger).__name__} failed ({type(error).__name__}: {error}) and is switched off; "
                    "training continues",
                    file=sys.stderr,
                )
