"""Runs a training script (or a function that trains) in this process for a number of updates, and tells an observer.

The script is not changed and sees nothing of it: same randomness, same results, its output on the error stream, because
standard output is the measurement's. When enough updates are done it is ended where its next batch, forward, backward or
step would begin, so that the iteration of the last update is complete.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stdout
from dataclasses import dataclass
from typing import TYPE_CHECKING

from fallline.instruments.observer import Enough, NothingMeasured, Observer, Ran
from fallline.taps.launch import after_torch, execute, report, without_us
from fallline.taps.patches import Patches

if TYPE_CHECKING:
    from fallline.instruments.follow import Follower
    from fallline.instruments.frame import Progress

__all__ = ["Enough", "NothingMeasured", "Observer", "Ran", "Script", "run_until"]


@dataclass(frozen=True)
class Script:
    """A script as on a command line."""

    path: str
    arguments: tuple[str, ...] = ()
    module: bool = False  # `-m`


def run_until(
    target: Script | Callable[[], object],
    observer: Observer | Callable[[], Observer],
    *,
    updates: int,
    ready: Callable[[Patches, Ran], None] | None = None,
    progress: Progress | None = None,
) -> Ran:
    """Run it until `updates` updates are done; what it raised is in the answer, and told on the error stream if it is a script.

    torch is imported by the script, not before it (it may set OMP_NUM_THREADS first): an observer that needs torch is made by a
    function, which is called then. `ready` is called then too, for patches of the instrument's own, which are taken away at the end. A
    function that raises has raised into `error`; a script's exit status is kept.
    """
    ran = Ran()
    follower: Follower | None = None
    own = Patches()
    over = False

    def install() -> None:
        nonlocal follower
        if over:
            return  # it never imported torch, and we do now
        from fallline.instruments.follow import Follower  # imports torch

        listening = observer if isinstance(observer, Observer) else observer()
        follower = Follower(listening, ran, updates, progress)
        follower.start()
        if ready is not None:
            ready(own, ran)
        follower.tell(listening.started)

    with _arguments_kept(), _output_apart():
        after_torch(install)
        try:
            if isinstance(target, Script):
                ran.status, ran.error = execute(
                    target.path, list(target.arguments), module=target.module
                )
            else:
                ran.error = _call(target)
        finally:
            over = True
            own.remove()
            if follower is not None:
                follower.stop()
        if isinstance(ran.error, Enough):
            ran.error, ran.status = None, 0
        elif isinstance(ran.error, KeyboardInterrupt):
            ran.interrupted = True
        elif isinstance(ran.error, SystemExit):
            ran.error = None
        elif ran.error is not None:
            if follower is not None:
                follower.tell(follower.observer.failed, ran.error)
            (report if isinstance(target, Script) else without_us)(ran.error)
        if follower is not None:
            follower.tell(follower.observer.ended, ran)
    if follower is not None and follower.failure is not None:
        raise follower.failure
    return ran


def _call(function: Callable[[], object]) -> BaseException | None:
    try:
        function()
    except BaseException as error:
        return error
    return None


@contextmanager
def _arguments_kept() -> Iterator[None]:
    """What running a script sets for the whole process is set back."""
    argv, path, main = sys.argv, list(sys.path), sys.modules["__main__"]
    try:
        yield
    finally:
        sys.argv, sys.path[:], sys.modules["__main__"] = argv, path, main


@contextmanager
def _output_apart() -> Iterator[None]:
    """What is printed goes to the error stream, also by C code and by processes that are started."""
    sys.stdout.flush()
    try:
        kept = os.dup(1)
        os.dup2(2, 1)
    except OSError:  # closed, or not there (a notebook)
        kept = None
    try:
        with redirect_stdout(sys.stderr):
            yield
    finally:
        sys.stderr.flush()
        if kept is not None:
            os.dup2(kept, 1)
            os.close(kept)
