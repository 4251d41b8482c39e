"""Events of learning-rate schedulers."""

from __future__ import annotations

from typing import Any

from fallline.events import SchedulerStep
from fallline.location import Location
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
        self._passes: dict[str, int] = {}  # over loaders, at the first step of each
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
        self._describe(call, name, held, at, per)
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

    def _describe(
        self, call: SchedulerStepCall, name: str, held: str | None, at: Location, per: str | None
    ) -> None:
        """What is written down of a schedule: at its first step how long it is, at its second whether that comes in the same epoch."""
        if name not in self._lengths and per is not None:
            self._lengths[name] = {
                "optimizer": held,
                "type": type(call.scheduler).__name__,
                "length": length_of(call.scheduler),
                "per": per,
                "path": at.path,
                "line": at.line,
                "function": at.function,
            }
            self._passes[name] = self._loaders.passes
        elif (passes := self._passes.pop(name, None)) is not None:
            self._lengths[name]["often"] = per == "batch" and passes == self._loaders.passes
        else:
            return
        self._recording.open().describe("schedules", list(self._lengths.values()))


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
