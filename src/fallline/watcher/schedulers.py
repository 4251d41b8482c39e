"""Events of learning-rate schedulers."""

from __future__ import annotations

from typing import Any

from fallline.events import SchedulerStep
from fallline.taps.schedulers import SCHEDULER_STEP, SchedulerStepCall
from fallline.taps.tap import Subscription
from fallline.watcher.emit import Emitter, spot
from fallline.watcher.facts import inner_of
from fallline.watcher.fuse import Fuse
from fallline.watcher.loaders import Loaders
from fallline.watcher.objects import Objects
from fallline.watcher.recording import Recording
from fallline.watcher.routine import Routine

__all__ = ["Schedulers", "length_of"]


class Schedulers:
    """Which schedule advances, for which optimizer, in which loop."""

    def __init__(
        self,
        emitter: Emitter,
        routine: Routine,
        objects: Objects,
        loaders: Loaders,
        recording: Recording,
    ) -> None:
        self._emitter = emitter
        self._recording = recording
        self._lengths: dict[str, dict[str, Any]] = {}
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
        per = self._loaders.in_loop()
        if name not in self._lengths and per == "batch":
            self._lengths[name] = {"optimizer": held, "length": length_of(scheduler)} | {
                "path": at.path,
                "line": at.line,
                "function": at.function,
            }
            self._recording.open().describe("schedules", list(self._lengths.values()))
        self._emitter.emit(
            SchedulerStep(
                at,
                callers=callers,
                scheduler=name,
                optimizer=held,
                explicit=call.explicit,
                per=per,
            )
        )


def length_of(scheduler: Any) -> int | None:
    """After how many steps a schedule has run its course; None where it has no end or it is not known."""
    for name in ("T_max", "total_steps", "total_iters"):
        length = getattr(scheduler, name, None)
        if isinstance(length, int) and length > 0:
            return length
    for function in getattr(scheduler, "lr_lambdas", ()):  # those of transformers are partials
        length = (getattr(function, "keywords", None) or {}).get("num_training_steps")
        if isinstance(length, int) and length > 0:
            return length
    return None
