"""`fallline.watch(model, optimizer)`: the watcher from inside a script or a notebook."""

from __future__ import annotations

import atexit
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

from fallline.conclude import conclude
from fallline.errors import FalllineError, UsageError
from fallline.finding import Finding
from fallline.integrations.cells import name_cells
from fallline.integrations.logger import log_session, loggers_of
from fallline.integrations.run import active, default_folder, versions
from fallline.report.run import summary
from fallline.runs.ending import ending
from fallline.show.terminal import Paint, wants_colour
from fallline.taps.frames import cells
from fallline.verdict import judge

if TYPE_CHECKING:
    from types import TracebackType

    from fallline.runs.series import Series

__all__ = ["Watch", "check_options", "current", "watch"]

_watching: Watch | None = None


class Watch:
    """Watches until `stop()`, or to the end of its `with` block. `findings` is filled when it stops."""

    def __init__(self, session: Any, *, own: bool) -> None:
        self._session = session
        self.own = own  # False: `fallline run` watches already, and ends with the script
        self.stopped = False
        self.findings: list[Finding] = []
        self.series: Series | None = None  # the run as numbers, when it has stopped

    @property
    def folder(self) -> Path | None:
        """The run folder; None before the first update."""
        recorder = self._session.recorder
        return recorder.folder if recorder is not None else None

    def stop(self, status: str = "finished") -> list[Finding]:
        """Stop watching; the findings, which are also in `folder`/findings.json. Safe to call twice."""
        global _watching
        if self.stopped or not self.own:
            return self.findings
        self.stopped = True
        if _watching is self:
            _watching = None
        atexit.unregister(self._exit)
        if cells and self._session.recorder is not None:
            # a notebook has no file to look them up in
            self._session.recorder.describe("cells", cells)
        self._session.finish(status)
        if self.folder is not None and self._session.rank == 0:
            try:
                self.series, self.findings = conclude(
                    self.folder, wait=self._session.recording.world > 1
                )
            except (FalllineError, OSError):
                self.findings = self._session.findings  # the disk is full: they are still here
        if self._session.loggers is not None:
            self._session.loggers.close(self.findings)
        return self.findings

    def fail(self, error: BaseException) -> list[Finding]:
        """Stop watching because the program raised; perhaps it saw a NaN itself."""
        if self.own and not self.stopped and isinstance(error, Exception):
            self._session.crashed(error)
        return self.stop(ending(error))

    def summary(self, stream: TextIO) -> str:
        """What `fallline run` would say at the end, for this stream; empty before the end, and on other ranks."""
        if self.series is None:
            return ""
        return summary(self.series, self.findings, Paint(wants_colour("auto", stream)))

    def _exit(self) -> None:
        """The interpreter ends: by itself, or by an exception that nobody caught."""
        error = getattr(sys, "last_value", None)
        self.stop(ending(error))

    def __enter__(self) -> Watch:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if error is None:
            self.stop()
        else:
            self.fail(error)


def current() -> Any:
    """The session that watches this process; None where nobody does."""
    return _watching._session if _watching is not None else active()


def check_options(budget: float, guard: str, log: Any = None, guard_limit: str = "aside") -> None:
    """Say at once what is wrong with them."""
    if guard not in ("skip", "exact", "stop", "off"):
        raise UsageError(f"guard={guard!r}: say 'skip', 'exact', 'stop' or 'off'")
    if guard_limit not in ("aside", "stop", "none"):
        raise UsageError(f"guard_limit={guard_limit!r}: say 'aside', 'stop' or 'none'")
    if not 0 <= budget <= 100:
        raise UsageError(f"budget={budget!r}: it is a percentage of the step time, from 0 to 100")
    if log is not None:
        loggers_of(log)


def watch(
    *things: Any,
    out: str | os.PathLike[str] | None = None,
    budget: float = 1.0,
    guard: str = "off",
    log: Any = None,
    guard_limit: str = "aside",
    check_hardware: int = 0,
) -> Watch:
    """Watch training from here on.

    `things` are models and optimizers, for their names; what else is used is found by itself. `budget` is the time
    for measuring in percent of the step time. `guard`: "skip" keeps non-finite updates out of the model, "exact" does so too and
    waits for the device before each step, "stop" raises on them, "off" leaves them alone. `guard_limit`: after 10 of them in a row
    or more than 5 % of the last 200 the guard steps "aside", or raises ("stop"), or continues ("none"). `log` sends the numbers on: "tensorboard", "wandb", "mlflow", "trackio", "opentelemetry", an object with
    `numbers` and `finding`, or a list of these. `check_hardware`: every so many updates compute a micro-batch again and compare it bit for bit. Under `fallline run`, which watches already, only `log` counts.
    """
    global _watching
    check_options(budget, guard, log, guard_limit)
    import torch

    # the package may be asked for `fallline.watch` where there is no torch
    from fallline.watcher.session import Options, Session

    for thing in things:
        if not isinstance(thing, torch.nn.Module | torch.optim.Optimizer):
            raise UsageError(
                f"fallline.watch takes models and optimizers, not {type(thing).__name__}"
            )
    running = active()
    if running is not None:
        if log is not None and running.loggers is None:
            log_session(running, log)
        return Watch(running, own=False)
    if _watching is not None:
        _watching.stop()
    folder = Path(out if out is not None else default_folder("watch"))
    session = Session(
        Options(
            folder.absolute(),
            budget / 100,
            guard,
            {"cwd": str(Path.cwd()), **versions()},
            guard_limit,
            check_hardware,
        ),
        judge,
    )
    for thing in things:
        if isinstance(thing, torch.nn.Module):
            session.objects.model(thing)
        else:
            session.objects.optimizer(thing)
    if log is not None:
        log_session(session, log)
    _name_cells()
    session.start(rebind=True)
    _watching = Watch(session, own=True)
    atexit.register(_watching._exit)
    return _watching


def _name_cells() -> None:
    """In a notebook findings are to name its cells, also without `%load_ext fallline`."""
    shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    if shell is not None:
        name_cells(shell)
