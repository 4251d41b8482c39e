"""Events of optimizers: steps, gradients that are cleared."""

from __future__ import annotations

from typing import Literal

import torch
from torch import nn

from fallline.events import Step, ZeroGrad
from fallline.replay.modules import unwrap
from fallline.taps.optimizers import OPTIMIZER_MADE, ZERO_GRAD, OptimizerMade, ZeroGradCall
from fallline.taps.tap import Call, Subscription
from fallline.watcher.emit import Emitter, spot
from fallline.watcher.facts import inner_of, steps_by_hand
from fallline.watcher.fuse import Fuse
from fallline.watcher.objects import Objects
from fallline.watcher.routine import Routine
from fallline.watcher.scalers import Scalers

__all__ = ["Steps"]


class Steps:
    """Which optimizer steps or clears, from which line, through what."""

    def __init__(
        self, emitter: Emitter, routine: Routine, objects: Objects, scalers: Scalers
    ) -> None:
        self._emitter = emitter
        self._routine = routine
        self._objects = objects
        self._scalers = scalers

    def subscribe(self, taps: Subscription, fuse: Fuse) -> None:
        taps.after(OPTIMIZER_MADE, fuse.guarded(self._made))
        taps.before(
            ZERO_GRAD, self._routine.unless_expected("zero_grad", "owner", self._zero_grad, fuse)
        )

    def named(self, optimizer: torch.optim.Optimizer) -> tuple[str, int]:
        """The name of an optimizer, and its set of parameters."""
        name = self._objects.optimizer(optimizer)
        return name, self._objects.optimizer_sets[name]

    def record(
        self, optimizer: torch.optim.Optimizer, call: Call, skipped: bool, closure: bool
    ) -> Step:
        where = call.place
        at, callers = spot(where)
        name = self._objects.known(optimizer) or self._objects.optimizer(optimizer, at)
        scaler = self._scalers.stepping
        framework = where.framework if where is not None else None
        if framework != "fallline" and steps_by_hand(call.frame, optimizer):
            framework = None  # the Stepper clears by itself, a wrapper does not
        via: Literal["scaler", "framework", "direct"] = (
            "scaler" if scaler is not None else "framework" if framework else "direct"
        )
        return self._emitter.emit(
            Step(
                at,
                callers=callers,
                optimizer=name,
                scaler=self._objects.known(scaler) if scaler is not None else None,
                via=via,
                skipped=skipped,
                closure=closure or None,
                parameter_set=self._objects.optimizer_sets[name],
            )
        )

    def _made(self, call: OptimizerMade) -> None:
        where = call.place
        self._objects.optimizer(call.optimizer, where.at if where else None)

    def _zero_grad(self, call: ZeroGradCall) -> None:
        owner, objects = call.owner, self._objects
        at, callers = spot(call.place)
        event = ZeroGrad(at, callers=callers)
        if isinstance(owner, nn.Module):
            event.model = objects.known(unwrap(owner))
            event.parameter_set = objects.parameters(objects.as_stepped(owner.parameters()))
        else:
            event.optimizer, event.parameter_set = self.named(inner_of(owner))
            if call.to_none and objects.borrows(event.parameter_set):
                event.keeps = True
        self._emitter.emit(event)
