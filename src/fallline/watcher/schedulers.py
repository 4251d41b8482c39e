"""Events of learning-rate schedulers."""

from __future__ import annotations

from fallline.events import SchedulerStep
from fallline.taps.schedulers import SCHEDULER_STEP, SchedulerStepCall
from fallline.taps.tap import Subscription
from fallline.watcher.emit import Emitter, spot
from fallline.watcher.facts import inner_of
from fallline.watcher.fuse import Fuse
from fallline.watcher.loaders import Loaders
from fallline.watcher.objects import Objects
from fallline.watcher.routine import Routine

__all__ = ["Schedulers"]


class Schedulers:
    """Which schedule advances, for which optimizer, in which loop."""

    def __init__(
        self, emitter: Emitter, routine: Routine, objects: Objects, loaders: Loaders
    ) -> None:
        self._emitter = emitter
        self._routine = routine
        self._objects = objects
        self._loaders = loaders

    def subscribe(self, taps: Subscription, fuse: Fuse) -> None:
        step = self._routine.unless_expected("scheduler_step", "scheduler", self._step, fuse)
        taps.before(SCHEDULER_STEP, step)

    def _step(self, call: SchedulerStepCall) -> None:
        scheduler, objects = call.scheduler, self._objects
        name = objects.name("scheduler", scheduler, type=type(scheduler).__name__)
        optimizer = getattr(scheduler, "optimizer", None)
        held = objects.optimizer(inner_of(optimizer)) if optimizer is not None else None
        at, callers = spot(call.place)
        self._emitter.emit(
            SchedulerStep(
                at,
                callers=callers,
                scheduler=name,
                optimizer=held,
                explicit=call.explicit,
                per=self._loaders.in_loop(),
            )
        )
