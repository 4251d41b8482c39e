"""Follows a training loop through the taps, reports to an observer, and ends the script when it is time."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import torch

from fallline.instruments.frame import Progress
from fallline.instruments.observer import Enough, Observer, Ran
from fallline.taps.backward import BACKWARD, BackwardCall
from fallline.taps.data import BATCH, EPOCH, INDEX, BatchCall, EpochCall, IndexCall
from fallline.taps.modules import MODULE_CALL, ModuleCall
from fallline.taps.optimizers import OPTIMIZER_MADE, STEP, OptimizerMade, StepCall
from fallline.taps.scaling import SCALER_STEP, ScalerStepCall
from fallline.taps.tap import Subscription, silence, switch

__all__ = ["Follower"]


class Follower:
    """Subscribes one observer to one run of a script."""

    def __init__(
        self, observer: Observer, ran: Ran, updates: int, progress: Progress | None
    ) -> None:
        self.observer = observer
        self.progress = progress
        self.ran = ran
        self.wanted = updates
        self.failure: Exception | None = None
        self._telling = False
        self._depth = 0  # of module calls
        self._steps: dict[int, int] = {}  # id of optimizer → steps
        self._before_scaler = 0
        self._pid = os.getpid()
        self._taps = self._subscription()

    def _subscription(self) -> Subscription:
        taps = Subscription()
        taps.after(OPTIMIZER_MADE, self._optimizer_made)
        taps.before(STEP, self._step_begins)
        taps.after(STEP, self._step_ends)
        taps.before(SCALER_STEP, self._scaler_begins)
        taps.after(SCALER_STEP, self._scaler_ends)
        taps.before(MODULE_CALL, self._module_begins)
        taps.after(MODULE_CALL, self._module_ends)
        taps.before(BACKWARD, self._backward_begins)
        taps.after(BACKWARD, self._backward_ends)
        taps.before(EPOCH, self._epoch_begins)
        taps.after(INDEX, self._indices_taken)
        taps.before(BATCH, self._batch_begins)
        taps.after(BATCH, self._batch_ends)
        return taps

    def start(self) -> None:
        self._taps.start()

    def stop(self) -> None:
        self._taps.stop()

    def tell(self, method: Callable[..., None], *args: Any) -> None:
        """An instrument that fails must not end the script that it measures; it is heard afterwards."""
        if self.failure is not None:
            return
        # not inside of an observer that runs the model again, and says itself how far it is
        if self.progress is not None and not self._telling:
            self.progress.advance(self.ran.updates, "updates")
        before, self._telling = self._telling, True
        try:
            with silence():
                method(*args)
        except Exception as error:
            self.failure = error
        finally:
            self._telling = before

    @property
    def _here(self) -> bool:
        """A worker of a loader, forked from this process, has nothing to report."""
        return os.getpid() == self._pid

    def _end_if_enough(self) -> None:
        enough = self.ran.updates >= self.wanted or self.observer.over
        if (enough or self.failure is not None) and self._here:
            self.ran.enough = True
            raise Enough(0)

    # -- optimizers --------------------------------------------------------------------------------------------

    def _optimizer_made(self, call: OptimizerMade) -> None:
        self._known(self.ran.optimizers, call.optimizer, self.observer.optimizer_made)

    def _step_begins(self, call: StepCall) -> None:
        # another optimizer may be behind by a step
        if self._steps.get(id(call.optimizer), 0) >= self.wanted:
            self._end_if_enough()
        self._known(self.ran.optimizers, call.optimizer, self.observer.optimizer_made)
        self.tell(self.observer.step_begins, call.optimizer)

    def _step_ends(self, call: StepCall) -> None:
        self.tell(self.observer.step_ends, call.optimizer)
        self._count(call.optimizer)

    def _scaler_begins(self, call: ScalerStepCall) -> None:
        self._before_scaler = self._steps.get(id(call.optimizer), 0)

    def _scaler_ends(self, call: ScalerStepCall) -> None:
        # skipped steps count: or a run that overflows for ever would never be ended
        if not call.raised and self._steps.get(id(call.optimizer), 0) == self._before_scaler:
            self._count(call.optimizer)

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

    def _module_begins(self, call: ModuleCall) -> None:
        if not self._here:
            return
        if self._outermost():
            self._end_if_enough()
            if torch.is_grad_enabled():
                self._known(self.ran.models, call.module, None)
            self.tell(self.observer.forward_begins, call.module, call.args, call.kwargs)
        self._depth += 1
        self.tell(self.observer.module_begins, call.module)

    def _module_ends(self, call: ModuleCall) -> None:
        if not self._here:
            return
        self.tell(self.observer.module_ends, call.module)
        self._depth -= 1
        if self._outermost() and not call.raised:
            self.tell(self.observer.forward_ends, call.module, call.output)

    def _outermost(self) -> bool:
        return self._depth == 0 and not switch.in_backward

    def _backward_begins(self, call: BackwardCall) -> None:
        if self._here:
            self._end_if_enough()
            self.tell(self.observer.backward_begins, call.loss)

    def _backward_ends(self, call: BackwardCall) -> None:
        if self._here:
            self.tell(self.observer.backward_ends)

    # -- data --------------------------------------------------------------------------------------------------

    def _epoch_begins(self, call: EpochCall) -> None:
        if self._here:
            self._end_if_enough()
            self._known(self.ran.loaders, call.loader, None)
            self.tell(self.observer.epoch_begins, call.loader)

    def _indices_taken(self, call: IndexCall) -> None:
        if self._here:
            self.tell(self.observer.indices_taken, call.iterator, call.index)

    def _batch_begins(self, call: BatchCall) -> None:
        if self._here:
            self._end_if_enough()
            self.tell(self.observer.batch_begins, call.iterator)

    def _batch_ends(self, call: BatchCall) -> None:
        if self._here:
            self.tell(self.observer.batch_ends, call.iterator, call.batch)
