"""`fallline run` from end to end: the run folder, the session, the script, processes it spawns, the findings.

It says one line on stderr when the script starts and what it has seen when the script ends, whatever happens in between.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import re
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fallline.conclude import conclude
from fallline.errors import FalllineError
from fallline.integrations.logger import log_session
from fallline.report.live import Live
from fallline.runs.ending import ending
from fallline.runs.findings import write_findings
from fallline.runs.series import Series
from fallline.runs.store import MARK, Store, claim_folder, free_folder, rank_files, unwritable
from fallline.taps.launch import after_torch, run_target
from fallline.taps.on_import import after_import
from fallline.verdict import judge

if TYPE_CHECKING:
    from fallline.finding import Finding
    from fallline.watcher.session import Session

__all__ = ["active", "child", "forked", "run_watched", "shown"]


@dataclass(slots=True)
class _Run:
    """`fallline run` in this process."""

    settings: dict[str, Any]
    show: Callable[[Series, list[Finding]], None]  # says at the end what was seen
    spawned: bool = False  # by the process that the user started, which says what was seen
    session: Session | None = None  # from the moment that torch is imported
    unwatched: str | None = None  # why

    @property
    def folder(self) -> Path:
        return Path(self.settings["out"])

    @property
    def speaks(self) -> bool:
        rank = self.session.rank if self.session is not None else os.environ.get("RANK", "0")
        return not self.spawned and str(rank) == "0"


_run: _Run | None = None


def active() -> Session | None:
    """The session of this process, when it was started under `fallline run`."""
    return _run.session if _run is not None else None


def run_watched(args: argparse.Namespace, show: Callable[[Series, list[Finding]], None]) -> int:
    """Run the script and watch it; the script's own exit status. `show` says at the end what was seen."""
    wanted = _folder(args)
    trouble = (
        unwritable(wanted) if _world() == 1 else None
    )  # ranks would not find each other elsewhere
    settings = {
        "out": str(_elsewhere() if trouble else wanted),
        "budget": args.budget / 100,
        "guard": args.guard,
        "guard_limit": args.guard_limit,
        "check_hardware": args.check_hardware,
        "log": args.log,
        "script": args.target,
        "argv": args.arguments,
        "cwd": os.getcwd(),
        "started": time.time() - 1.0,
    }
    run = _Run(settings, show)
    if trouble and run.speaks:
        _say(f"cannot write the run to {shown(wanted)} ({trouble})")
    _watch(run)
    process = os.getpid()
    return run_target(
        args.target,
        args.arguments,
        module=args.module,
        ready=lambda: _announce(run),
        finish=lambda status: _end_of(process, run, status),
        crashed=_crashed,
    )


def _folder(args: argparse.Namespace) -> Path:
    """Where this run is recorded; beside the folder asked for when that one already holds a run."""
    wanted = Path(args.out or default_folder(args.target)).absolute()
    if _world() > 1:
        return wanted  # another rank of this run may have come first
    with suppress(OSError):
        return free_folder(wanted)
    return wanted


def _elsewhere() -> Path:
    import tempfile  # hardly ever needed, and start-up counts

    return Path(tempfile.mkdtemp(prefix="fallline-")) / "run"


def default_folder(target: str) -> str:
    """fallline-runs/SCRIPT-TIME; the ranks of one launch agree on it without talking to each other."""
    stem = re.sub(r"\W+", "-", Path(target).stem or "run").strip("-") or "run"
    started = _launcher_started() if _world() > 1 else time.time()
    return os.path.join(
        "fallline-runs", f"{stem}-{time.strftime('%Y%m%d-%H%M%S', time.localtime(started))}"
    )


def _world() -> int:
    try:
        return int(os.environ.get("WORLD_SIZE") or 1)
    except ValueError:
        return 1


def _launcher_started() -> float:
    """When torchrun was started, as the system knows it."""
    with suppress(OSError, IndexError, ValueError):
        ticks = float(Path(f"/proc/{os.getppid()}/stat").read_text().rpartition(")")[2].split()[19])
        boot = next(x for x in Path("/proc/stat").read_text().splitlines() if x.startswith("btime"))
        return float(boot.split()[1]) + ticks / os.sysconf("SC_CLK_TCK")
    return 0.0


# -- from the first line to the last ---------------------------------------------------------------------------


def _announce(run: _Run) -> None:
    if run.speaks:
        _say(f"watching {run.settings['script']}; the run is recorded in {shown(run.folder)}")


def _watch(run: _Run) -> None:
    """Watch this process as soon as it imports torch, and the processes it spawns."""
    global _run
    _run = run
    after_torch(lambda: _begin(run))
    # by then the script has imported multiprocessing itself, whose exit handlers keep their place among the script's
    after_import("multiprocessing.spawn", lambda: _watch_spawned(run.settings))


def _begin(run: _Run) -> None:
    """torch has just been imported: put the taps in place."""
    settings = run.settings
    try:
        # only now, because it imports torch
        from fallline.watcher.session import Options, Session

        meta = {k: settings[k] for k in ("script", "argv", "cwd")} | versions()
        session = Session(
            Options(
                Path(settings["out"]),
                settings["budget"],
                settings["guard"],
                meta,
                settings["guard_limit"],
                settings["check_hardware"],
            ),
            judge,
        )
        session.trains = lambda: forked(session)
        if settings["log"]:
            log_session(session, settings["log"])
        session.start()
        if session.rank == 0:
            session.live = Live.on_stderr(
                lambda: session.findings, lambda: session.observed.all, meta
            )
        run.session = session
    except Exception as error:
        run.unwatched = f"{type(error).__name__}: {error}"
        _say(f"cannot watch this run ({run.unwatched}); the script runs unwatched")


def _crashed(error: BaseException) -> None:
    """The script raised: its frames are still there to be looked at."""
    session = active()
    if session is not None and isinstance(error, Exception):
        session.crashed(error)


def _end_of(process: int, run: _Run, status: str) -> None:
    """In a process that the script has forked there is nothing to end, unless it trained."""
    if os.getpid() == process or (run.session is not None and run.session.pid == os.getpid()):
        _end(run, status)


def _end(run: _Run, status: str) -> None:
    """The script is over: judge, write findings.json, say what was seen. Never raises."""
    try:
        if run.session is not None:
            _finish(run.session, status)
        if run.session is not None and run.session.recorder is not None:
            _conclude_own(run, run.session)
        elif not run.spawned:
            _conclude_without_updates(run, status)
    except Exception as error:
        _say(str(error))


def _finish(session: Session, status: str) -> None:
    if session.live is not None:
        session.live.stop()
    session.finish(status)


def _conclude_own(run: _Run, session: Session) -> None:
    if session.failed is not None and run.speaks:
        _say("the watcher failed during this run, so the report covers only what came before")
    assert session.recorder is not None
    folder = session.recorder.folder
    if session.rank == 0 and rank_files(folder):
        found = _concluded(run, session, folder)
        if session.loggers is not None:
            session.loggers.close(found)


def _concluded(run: _Run, session: Session, folder: Path) -> list[Finding]:
    """What the folder shows; where the disk was full, and stderr has said so, what is still known here."""
    try:
        return _conclude(run, folder, wait=session.recording.world > 1)
    except (FalllineError, OSError):
        if session.recorder is None or not session.recorder._warned:
            raise
    if run.speaks:
        run.show(Series(), session.findings)
    return session.findings


def _conclude(run: _Run, folder: Path, *, wait: bool = True) -> list[Finding]:
    """`wait`: for other ranks."""
    series, found = conclude(folder, wait=wait)
    if run.speaks:
        run.show(series, found)
    return found


def _conclude_without_updates(run: _Run, status: str) -> None:
    """Nothing stepped in this process: processes that it spawned may have, or there is nothing to report."""
    spawned = _spawned_run(run.folder, run.settings["started"])
    if spawned is not None:
        _conclude(run, spawned)
    elif run.unwatched is not None:
        _say(f"this run was not watched ({run.unwatched}), so nothing is known about it")
    elif run.speaks:
        why = "no optimizer stepped" if run.session is not None else "torch was never imported"
        _say(f"{why}, so there is nothing to report; {shown(_left_empty(run, status))} is empty")


def _spawned_run(folder: Path, started: float) -> Path | None:
    """The run folder that the script's own processes have made, which may be beside the one asked for."""
    for candidate in (folder, *sorted(folder.parent.glob(f"{folder.name}-*"))):
        mark = candidate / MARK
        if mark.exists() and mark.stat().st_mtime >= started:
            return candidate
    return None


def _left_empty(run: _Run, status: str) -> Path:
    """The findings.json of a run without an update, in a folder that `fallline report` can read."""
    settings = run.settings
    folder = claim_folder(run.folder, 0, 1)
    about: dict[str, Any] = {k: settings[k] for k in ("script", "argv", "cwd", "started")}
    about |= {"rank": 0, "world": 1, "pid": os.getpid(), "status": status, "ended": time.time()}
    if run.session is not None:
        about |= versions()
    store = Store.create(folder, 0)
    for key, value in about.items():
        store.meta(key, value)
    store.close()
    return write_findings(folder, [])


def _say(text: str) -> None:
    with suppress(OSError, ValueError, AttributeError):  # nobody listens any more
        print(f"fallline: {text}", file=sys.stderr, flush=True)


def shown(path: Path) -> Path:
    """As short as it can be said from the folder that the user is in."""
    with suppress(ValueError, OSError):
        return path.relative_to(os.getcwd())
    return path


def versions() -> dict[str, str]:
    """What the run ran on, for the report."""
    import torch  # the script has imported it by now

    return {"torch": torch.__version__, "python": platform.python_version()}


# -- processes that the script spawns --------------------------------------------------------------------------


def _watch_spawned(settings: dict[str, Any]) -> None:
    """multiprocessing starts a fresh interpreter per child: let it start by putting our taps in place."""
    from multiprocessing import spawn  # the script has imported it

    original = spawn.get_command_line
    begin = f"from fallline.integrations.run import child; child({json.dumps(settings)!r}); "

    def get_command_line(**kwargs: Any) -> list[str]:
        command = original(**kwargs)
        if "-c" in command:
            code = command.index("-c") + 1
            command[code] = begin + command[code]
        return command

    spawn.get_command_line = get_command_line


def child(settings: str) -> None:
    """In a spawned child, before anything of the user's runs."""
    run = _Run(json.loads(settings), lambda series, found: None, spawned=True)
    _watch(run)
    _finish_with_process(run)


def forked(session: Session) -> None:
    """A forked child trains: it ends like a spawned one."""
    if _run is not None and session is _run.session:
        _run.spawned = True
        _finish_with_process(_run)


def _finish_with_process(run: _Run) -> None:
    """multiprocessing children end without atexit; its own finalizers are what they run."""
    from multiprocessing import util  # the child is one of multiprocessing's own

    util.Finalize(None, _quietly, args=(run,), exitpriority=-100)


def _quietly(run: _Run) -> None:
    error = sys.exc_info()[1]
    with suppress(FalllineError, OSError):
        _end(run, ending(error))
