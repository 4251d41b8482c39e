"""`fallline.watch(model, optimizer)`: the watcher from inside a script or a notebook."""

from __future__ import annotations

import atexit
import os
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fallline.errors import FalllineError, UsageError
from fallline.finding import Finding

if TYPE_CHECKING:
    from types import TracebackType

__all__ = ["Watch", "watch"]

_watching: Watch | None = None


class Watch:
    """Watches until `stop()`, or to the end of its `with` block. `findings` is filled when it stops."""

    def __init__(self, session: Any, *, own: bool) -> None:
        self._session = session
        self._own = own  # False: `fallline run` watches already, and ends with the script
        self._stopped = False
        self.findings: list[Finding] = []

    @property
    def folder(self) -> Path | None:
        """The run folder; None before the first update."""
        recorder = self._session.recorder
        return recorder.folder if recorder is not None else None

    def stop(self, status: str = "finished") -> list[Finding]:
        """Stop watching; the findings, which are also in `folder`/findings.json. Safe to call twice."""
        global _watching
        if self._stopped or not self._own:
            return self.findings
        self._stopped = True
        if _watching is self:
            _watching = None
        self._session.finish(status)
        if self.folder is not None and self._session.rank == 0:
            from fallline.watcher.conclude import conclude

            try:
                _, self.findings = conclude(self.folder, wait=True)
            except (FalllineError, OSError):
                self.findings = self._session.findings  # the disk is full: they are still here
        return self.findings

    def __enter__(self) -> Watch:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop("finished" if error is None else f"raised {type(error).__name__}: {error}")


def watch(
    *things: Any,
    out: str | os.PathLike[str] | None = None,
    budget: float = 1.0,
    guard: str = "off",
) -> Watch:
    """Watch training from here on.

    `things` are models and optimizers, for their names; what else is used is found by itself. `budget` is the time
    for measuring in percent of the step time. `guard`: "skip" keeps non-finite updates out of the model, "stop" raises on
    them, "off" leaves them alone. Under `fallline run`, which watches already, this changes nothing.
    """
    global _watching
    if guard not in ("skip", "stop", "off"):
        raise UsageError(f"guard={guard!r}: say 'skip', 'stop' or 'off'")
    if not 0 <= budget <= 100:
        raise UsageError(f"budget={budget!r}: it is a percentage of the step time, from 0 to 100")
    import torch

    from fallline.watcher.launch_run import active, versions
    from fallline.watcher.session import Options, Session

    for thing in things:
        if not isinstance(thing, torch.nn.Module | torch.optim.Optimizer):
            raise UsageError(
                f"fallline.watch takes models and optimizers, not {type(thing).__name__}"
            )
    running = active()
    if running is not None:
        return Watch(running, own=False)
    if _watching is not None:
        _watching.stop()
    folder = (
        Path(out)
        if out is not None
        else Path("fallline-runs") / f"watch-{time.strftime('%Y%m%d-%H%M%S')}"
    )
    session = Session(
        Options(folder.absolute(), budget / 100, guard, {"cwd": str(Path.cwd()), **versions()})
    )
    for thing in things:
        if isinstance(thing, torch.nn.Module):
            session.objects.model(thing)
        else:
            session.objects.optimizer(thing)
    session.start(rebind=True)
    _watching = Watch(session, own=True)
    atexit.register(_watching.stop)
    return _watching
