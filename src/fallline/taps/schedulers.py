"""Learning-rate schedulers: the steps that the program asks for, not those that a constructor or another scheduler makes."""

from __future__ import annotations

from dataclasses import dataclass
from threading import get_ident
from typing import Any

from torch.optim import lr_scheduler

from fallline.taps.frames import caller
from fallline.taps.patches import Patches, Wrapped
from fallline.taps.tap import Call, Tap, Topic, new, switch, thread

__all__ = ["SCHEDULER_STEP", "SchedulerStepCall"]


@dataclass(slots=True)
class SchedulerStepCall(Call):
    """`scheduler.step()`."""

    scheduler: Any
    explicit: bool  # with an epoch or a metric


class _Nested:
    inside = False


def _install(patches: Patches) -> None:
    classes = {
        c
        for c in vars(lr_scheduler).values()
        if isinstance(c, type) and c.__module__ == lr_scheduler.__name__
    }
    for scheduler in sorted(classes, key=lambda c: c.__name__):
        plateau = scheduler.__name__ == "ReduceLROnPlateau"
        if not plateau and not issubclass(scheduler, lr_scheduler.LRScheduler):
            continue
        if "step" in scheduler.__dict__:
            patches.patch(scheduler, "step", _step)
        if "__init__" in scheduler.__dict__:
            patches.patch(scheduler, "__init__", _init)


def _step(original: Wrapped) -> Wrapped:
    def step(self: Any, *args: Any, **kwargs: Any) -> Any:
        if switch.replaying:
            return None
        if _Nested.inside or switch.quiet or (thread.ident != get_ident() and thread.keeps_out()):
            return original(self, *args, **kwargs)
        call = new(SchedulerStepCall)
        call.frame, call.scheduler = caller(), self
        call.explicit = bool(args or kwargs)
        _Nested.inside = True
        try:
            return SCHEDULER_STEP.around(call, original, self, *args, **kwargs)
        finally:
            _Nested.inside = False

    return step


def _init(original: Wrapped) -> Wrapped:
    # constructors set the first learning rate through step(); that is not the user's step
    def init(self: Any, *args: Any, **kwargs: Any) -> Any:
        outer, _Nested.inside = _Nested.inside, True
        try:
            return original(self, *args, **kwargs)
        finally:
            _Nested.inside = outer

    return init


_tap = Tap(_install)
SCHEDULER_STEP = Topic(SchedulerStepCall, _tap)
