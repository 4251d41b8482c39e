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
from fallline.taps.patches import Patches, Wrapped
from fallline.watcher.launch import after_torch, execute, report, without_us

if TYPE_CHECKING:
    from torch import nn
    from torch.optim import Optimizer

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
    changed, and no random number drawn.
    """

    def started(self) -> None:
        """torch is imported, nothing of the script has used it yet."""

    def optimizer_made(self, optimizer: Optimizer) -> None: ...
    def epoch_begins(self, loader: Any) -> None: ...
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
    taps = _Taps(Observer(), ran, updates, progress)
    over = False

    def install() -> None:
        if over:
            return  # it never imported torch, and we do now
        taps.observer = observer if isinstance(observer, Observer) else observer()
        taps.install()
        if ready is not None:
            ready(taps, ran)
        taps.tell(taps.observer.started)

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
            taps.remove()
        if isinstance(ran.error, Enough):
            ran.error, ran.status = None, 0
        elif isinstance(ran.error, KeyboardInterrupt):
            ran.interrupted = True
        elif isinstance(ran.error, SystemExit):
            ran.error = None
        elif ran.error is not None:
            taps.tell(taps.observer.failed, ran.error)
            (report if isinstance(target, Script) else without_us)(ran.error)
        taps.tell(taps.observer.ended, ran)
    if taps.failure is not None:
        raise taps.failure
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


class _Taps(Patches):
    """Stands in front of what a training loop calls, tells the observer, and ends the script when it is time."""

    def __init__(
        self, observer: Observer, ran: Ran, updates: int, progress: Progress | None
    ) -> None:
        super().__init__()
        self.observer = observer
        self.progress = progress
        self.ran = ran
        self.wanted = updates
        self.failure: Exception | None = None
        self._telling = False
        self._depth = 0  # of module calls
        self._in_backward = False
        self._steps: dict[int, int] = {}  # id of optimizer → steps
        self._pid = os.getpid()

    def tell(self, method: Callable[..., None], *args: Any) -> None:
        """An instrument that fails must not end the script that it measures; it is heard afterwards."""
        if self.failure is not None:
            return
        # not inside of an observer that runs the model again, and says itself how far it is
        if self.progress is not None and not self._telling:
            self.progress.advance(self.ran.updates, "updates")
        before, self._telling = self._telling, True
        try:
            method(*args)
        except Exception as error:
            self.failure = error
        finally:
            self._telling = before

    @property
    def here(self) -> bool:
        """A worker of a loader, forked from this process, has nothing to tell."""
        return os.getpid() == self._pid

    def end_if_enough(self) -> None:
        if (self.ran.updates >= self.wanted or self.failure is not None) and self.here:
            self.ran.enough = True
            raise Enough(0)

    def install(self) -> None:
        import torch
        from torch import nn
        from torch.optim import Optimizer
        from torch.optim.optimizer import (
            register_optimizer_step_post_hook,
            register_optimizer_step_pre_hook,
        )
        from torch.utils.data import DataLoader
        from torch.utils.data.dataloader import _BaseDataLoaderIter

        self.on_removal(register_optimizer_step_pre_hook(self._before_step).remove)
        self.on_removal(register_optimizer_step_post_hook(self._after_step).remove)
        self.patch(Optimizer, "__init__", self._optimizer)
        self.patch(torch.amp.grad_scaler.GradScaler, "step", self._scaler)
        self.patch(torch.Tensor, "backward", self._backward)
        self.patch(torch.autograd, "backward", self._backward)
        self.patch(nn.Module, "__call__", self._module)
        self.patch(DataLoader, "__iter__", self._epoch)
        self.patch(_BaseDataLoaderIter, "__next__", self._batch)

    # -- optimizers --------------------------------------------------------------------------------------------

    def _optimizer(self, original: Wrapped) -> Wrapped:
        def __init__(optimizer: Any, *args: Any, **kwargs: Any) -> None:
            original(optimizer, *args, **kwargs)
            self._known(self.ran.optimizers, optimizer, self.observer.optimizer_made)

        return __init__

    def _before_step(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        if self._steps.get(id(optimizer), 0) >= self.wanted:  # another one may be behind by a step
            self.end_if_enough()
        self._known(self.ran.optimizers, optimizer, self.observer.optimizer_made)
        self.tell(self.observer.step_begins, optimizer)

    def _after_step(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        self.tell(self.observer.step_ends, optimizer)
        self._count(optimizer)

    def _scaler(self, original: Wrapped) -> Wrapped:
        def step(scaler: Any, optimizer: Any, *args: Any, **kwargs: Any) -> Any:
            before = self._steps.get(id(optimizer), 0)
            result = original(scaler, optimizer, *args, **kwargs)
            if self._steps.get(id(optimizer), 0) == before:
                self._count(
                    optimizer
                )  # skipped: or a run that overflows for ever would never be ended
            return result

        return step

    def _count(self, optimizer: Any) -> None:
        self._steps[id(optimizer)] = self._steps.get(id(optimizer), 0) + 1
        most = max(self._steps.values())
        if most > self.ran.updates:
            self.ran.updates = most
            self.tell(self.observer.update_ends, most)

    def _known(self, things: list[Any], thing: Any, method: Callable[..., None] | None) -> None:
        if not any(thing is known for known in things):
            things.append(thing)
            if method is not None:
                self.tell(method, thing)

    # -- forward and backward ----------------------------------------------------------------------------------

    def _module(self, original: Wrapped) -> Wrapped:
        import torch

        def __call__(module: Any, *args: Any, **kwargs: Any) -> Any:
            if torch.compiler.is_compiling() or not self.here:
                return original(module, *args, **kwargs)
            outermost = self._depth == 0 and not self._in_backward
            if outermost:
                self.end_if_enough()
                if torch.is_grad_enabled():
                    self._known(self.ran.models, module, None)
                self.tell(self.observer.forward_begins, module, args, kwargs)
            self._depth += 1
            self.tell(self.observer.module_begins, module)
            try:
                output = original(module, *args, **kwargs)
            finally:
                self.tell(self.observer.module_ends, module)
                self._depth -= 1
            if outermost:
                self.tell(self.observer.forward_ends, module, output)
            return output

        return __call__

    def _backward(self, original: Wrapped) -> Wrapped:
        def backward(tensors: Any, *args: Any, **kwargs: Any) -> Any:
            if self._in_backward or not self.here:  # Tensor.backward calls torch.autograd.backward
                return original(tensors, *args, **kwargs)
            self.end_if_enough()
            self._in_backward = True
            try:
                self.tell(self.observer.backward_begins, tensors)
                result = original(tensors, *args, **kwargs)
                self.tell(self.observer.backward_ends)
                return result
            finally:
                self._in_backward = False

        return backward

    # -- data --------------------------------------------------------------------------------------------------

    def _epoch(self, original: Wrapped) -> Wrapped:
        def __iter__(loader: Any) -> Any:
            if self.here:
                self.end_if_enough()
                self._known(self.ran.loaders, loader, None)
                self.tell(self.observer.epoch_begins, loader)
            return original(loader)

        return __iter__

    def _batch(self, original: Wrapped) -> Wrapped:
        def __next__(iterator: Any) -> Any:
            if not self.here:
                return original(iterator)
            self.end_if_enough()
            self.tell(self.observer.batch_begins, iterator)
            batch = original(iterator)
            self.tell(self.observer.batch_ends, iterator, batch)
            return batch

        return __next__
