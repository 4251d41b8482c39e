"""`fallline run` from end to end: the run folder, the session, the script, processes it spawns, the findings."""

from __future__ import annotations

import argparse
import json
import os
import re
import sys
import time
from contextlib import suppress
from multiprocessing import spawn, util
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fallline.errors import FalllineError
from fallline.runs.store import MARK, rank_files
from fallline.watcher.launch import after_torch, run_target

if TYPE_CHECKING:
    from fallline.finding import Finding
    from fallline.watcher.session import Session

__all__ = ["active", "child", "forked", "run_watched"]

_CHILD = "FALLLINE_CHILD"
_session: Session | None = None
_is_child = False


def active() -> Session | None:
    """The session of this process, when it was started under `fallline run`."""
    return _session


def run_watched(args: argparse.Namespace) -> int:
    """Run the script and watch it; the script's own exit status."""
    settings = {
        "out": str(Path(args.out or default_folder(args.target)).absolute()),
        "budget": args.budget / 100,
        "guard": args.guard,
        "log": args.log,
        "script": args.target,
        "argv": args.arguments,
        "cwd": os.getcwd(),
        "started": time.time() - 1.0,
    }
    after_torch(lambda: _begin(settings))
    _watch_spawned(settings)
    return run_target(
        args.target,
        args.arguments,
        module=args.module,
        finish=lambda status: _end(settings, status),
        crashed=_crashed,
    )


def default_folder(target: str) -> str:
    """fallline-runs/SCRIPT-TIME; the ranks of one launch agree on it without talking to each other."""
    stem = re.sub(r"\W+", "-", Path(target).stem or "run").strip("-") or "run"
    started = (
        _launcher_started() if int(os.environ.get("WORLD_SIZE", "1") or 1) > 1 else time.time()
    )
    return os.path.join(
        "fallline-runs", f"{stem}-{time.strftime('%Y%m%d-%H%M%S', time.localtime(started))}"
    )


def _launcher_started() -> float:
    """When torchrun was started, as the system knows it."""
    with suppress(OSError, IndexError, ValueError):
        ticks = float(Path(f"/proc/{os.getppid()}/stat").read_text().rpartition(")")[2].split()[19])
        boot = next(x for x in Path("/proc/stat").read_text().splitlines() if x.startswith("btime"))
        return float(boot.split()[1]) + ticks / os.sysconf("SC_CLK_TCK")
    return 0.0


def _begin(settings: dict[str, Any]) -> None:
    """torch has just been imported: put the taps in place."""
    global _session
    try:
        from fallline.verdict import judge
        from fallline.watcher.live import LiveLine
        from fallline.watcher.session import Options, Session

        meta = {k: settings[k] for k in ("script", "argv", "cwd")} | versions()
        _session = Session(
            Options(Path(settings["out"]), settings["budget"], settings["guard"], meta), judge
        )
        session = _session
        session.trains = lambda: forked(session)
        if settings["log"]:
            from fallline.integrations.logger import log_session

            log_session(session, settings["log"])
        session.start()
        if session.rank == 0:
            session.live = LiveLine.on_terminal(lambda: session.findings)
    except Exception as error:
        print(
            f"fallline: cannot watch this run ({type(error).__name__}: {error}); it goes on unwatched",
            file=sys.stderr,
        )


def _end(settings: dict[str, Any], status: str) -> None:
    """The script is over: judge, write findings.json, say what was found. Never raises."""
    session = _session
    folder = Path(settings["out"])
    try:
        if session is not None:
            if session.live is not None:
                session.live.stop()
            session.finish(status)
            if session.recorder is not None:
                if session.rank == 0 and rank_files(session.recorder.folder):
                    found = _concluded(session, session.recorder.folder)
                    if session.loggers is not None:
                        session.loggers.close(found)
                return
        spawned = _spawned_run(folder, settings["started"])
        if spawned is not None and not _is_child:
            _conclude(spawned)  # processes that the script started have been watched
        elif session is not None and session.rank == 0 and not _is_child and status == "finished":
            print("fallline: no optimizer stepped here: there is nothing to tell", file=sys.stderr)
    except Exception as error:
        with suppress(
            OSError, ValueError
        ):  # nobody listens any more: the script's status still counts
            print(f"fallline: {error}", file=sys.stderr)


def _crashed(error: BaseException) -> None:
    """The script raised: its frames are still there to be looked at."""
    if _session is not None and isinstance(error, Exception):
        _session.crashed(error.__traceback__)


def _spawned_run(folder: Path, started: float) -> Path | None:
    """The run folder that the script's own processes have made, which may stand beside the one asked for."""
    for candidate in (folder, *sorted(folder.parent.glob(f"{folder.name}-*"))):
        mark = candidate / MARK
        if mark.exists() and mark.stat().st_mtime >= started:
            return candidate
    return None


def _concluded(session: Session, folder: Path) -> list[Finding]:
    """What the folder shows; where the disk was full, and stderr has said so, what is still known here."""
    try:
        return _conclude(folder)
    except (FalllineError, OSError):
        if session.recorder is None or not session.recorder._warned:
            raise
    if not _is_child:
        from fallline.report.run import finding_lines
        from fallline.runs.series import Series
        from fallline.show.terminal import Paint, wants_colour

        paint = Paint(wants_colour("auto", sys.stderr))
        print("\n" + "\n".join(finding_lines(Series(), session.findings, paint)), file=sys.stderr)
    return session.findings


def _conclude(folder: Path) -> list[Finding]:
    from fallline.watcher.conclude import conclude

    series, found = conclude(folder, wait=True)
    if _is_child:
        return found  # the process that started this one says it
    from fallline.report.run import summary
    from fallline.show.terminal import Paint, wants_colour

    text = summary(series, found, Paint(wants_colour("auto", sys.stderr)))
    print(f"\n{text}\n  fallline report {folder}", file=sys.stderr)
    return found


def versions() -> dict[str, str]:
    """What the run ran on, for the report."""
    import platform

    import torch

    return {"torch": torch.__version__, "python": platform.python_version()}


# -- processes that the script spawns --------------------------------------------------------------------------


def _watch_spawned(settings: dict[str, Any]) -> None:
    """multiprocessing starts a fresh interpreter per child: let it start by putting our taps in place."""
    original = spawn.get_command_line

    def get_command_line(**kwargs: Any) -> list[str]:
        command = original(**kwargs)
        if "-c" in command:
            code = command.index("-c") + 1
            command[code] = (
                f"from fallline.watcher.launch_run import child; child(); {command[code]}"
            )
        return command

    spawn.get_command_line = get_command_line
    os.environ[_CHILD] = json.dumps(settings)


def child() -> None:
    """In a spawned child, before anything of the user's runs."""
    global _is_child
    try:
        settings = json.loads(os.environ[_CHILD])
    except (KeyError, ValueError):
        return
    _is_child = True
    after_torch(lambda: _begin(settings))
    _watch_spawned(settings)
    _finish_with_process(settings)


def forked(session: Session) -> None:
    """A forked child trains: it ends like a spawned one."""
    global _is_child
    if session is _session:
        _is_child = True
        _finish_with_process(json.loads(os.environ[_CHILD]))


def _finish_with_process(settings: dict[str, Any]) -> None:
    """multiprocessing children end without atexit; its own finalizers are what they run."""
    util.Finalize(None, _quietly, args=(settings,), exitpriority=-100)


def _quietly(settings: dict[str, Any]) -> None:
    error = sys.exc_info()[1]
    with suppress(FalllineError, OSError):
        _end(settings, "finished" if error is None else f"raised {type(error).__name__}: {error}")
