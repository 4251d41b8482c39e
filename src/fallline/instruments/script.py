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
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from fallline.errors import UsageError
from fallline.taps.patches import Patches
from fallline.watcher.launch import after_torch, execute, report, without_us

if TYPE_CHECKING:
    from torch import nn
    from torch.optim import Optimizer

    from fallline.instruments.follow import Follower
    from fallline.instruments.frame import Progress

__all__ = ["Enough", "NothingMeasured", "Observer", "Ran", "Script", "run_until"]


@dataclass(frozen=True)
class Script:
    """A script as on a command line."""

    path: str
    arguments: tuple[str, ...] = ()
    module: bool = False  # `-m`


class Enough(SystemExit):
    """Ends a script that has run long enough. A SystemExit: frameworks clean up and let it pass."""


class Observer:
    """What a run tells. Everything does nothing here; an instrument overrides what it is interested in.

    Every method is called in the training thread, before or after what it is named for. The tensors handed in must not be
    changed, and no random number drawn. What a method itself calls (the model, a backward) is not reported.
    """

    over = False  # enough was seen: the script may end before it has made all its updates

    def started(self) -> None:
        """torch is imported, nothing of the script has used it yet."""

    def optimizer_made(self, optimizer: Optimizer) -> None: ...
    def epoch_begins(self, loader: Any) -> None: ...
    def indices_taken(self, iterator: Any, indices: Any) -> None:
        """A loader has taken the indices of a batch from its sampler: one, or a list."""

    def batch_begins(self, iterator: Any) -> None: ...
    def batch_ends(self, iterator: Any, batch: Any) -> None: ...
    def forward_begins(self, model: nn.Module, args: Any, kwargs: Any) -> None:
        """A module is called from outside of any module."""

    def forward_ends(self, model: nn.Module, output: Any) -> None: ...
    def module_begins(self, module: nn.Module) -> None:
        """Any module is called, the outermost too."""

    def module_ends(self, module: nn.Module) -> None: ...
    def backward_begins(self, loss: Any) -> None: ...
    def backward_ends(self) -> None: ...
    def step_begins(self, optimizer: Optimizer) -> None: ...
    def step_ends(self, optimizer: Optimizer) -> None: ...
    def failed(self, error: BaseException) -> None:
        """The script raised; its frames are still there."""

    def ended(self, ran: Ran) -> None:
        """It is over, the taps are gone, and `__main__` is still the script's."""

    def update_ends(self, number: int) -> None:
        """So many updates are done (the most steps of one optimizer; steps that a scaler skipped count)."""


@dataclass
class Ran:
    """How a run ended, and what trained in it."""

    updates: int = 0
    enough: bool = False  # ended by us, after as many updates as were asked for
    interrupted: bool = False  # Ctrl-C
    status: int = 0  # the script's own exit status
    error: BaseException | None = None  # what it raised, if anything
    models: list[nn.Module] = field(default_factory=list)  # called with gradients on, in order
    optimizers: list[Optimizer] = field(default_factory=list)
    loaders: list[Any] = field(default_factory=list)  # iterated, in order

    @property
    def partial(self) -> bool:
        """The script neither came to its own end nor to the number of updates."""
        return not self.enough and (self.interrupted or self.status != 0 or self.error is not None)


class NothingMeasured(UsageError):
    """The script was over before there was anything to say about it. `status` is its own where it failed."""

    def __init__(self, ran: Ran, before: str) -> None:
        """`before`: what it did not come to, as in "before the backward of update 1"."""
        did = f"{ran.updates} update{'' if ran.updates == 1 else 's'}"
        self.status = ran.status or 2
        if ran.status:
            text = f"the script failed after {did}, {before}: there is nothing to measure"
        elif ran.updates == 0:
            text = (
                "the script came to its end without an update (no optimizer's step() was seen): there is nothing to measure. "
                "Name the script that trains, with the arguments that make it train"
            )
        else:
            text = f"the script came to its end after {did}, {before}: choose fewer --updates, or let it train longer"
        super().__init__(text)


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
