"""Events of modes: train and eval, checkpointed blocks, anomaly mode, autocast that is switched off."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from torch import nn

from fallline.events import Event, Kind
from fallline.replay.modules import unwrap
from fallline.taps.frames import from_torch
from fallline.taps.modes import AnomalyCall, AutocastOffCall, CheckpointCall, TrainCall
from fallline.watcher.taps_facts import HalfWatch, modules_in

if TYPE_CHECKING:
    from fallline.watcher.objects import Objects
    from fallline.watcher.routine import Routine

__all__ = ["ModeTeller"]


class ModeTeller:
    """What is switched on and off. Not on its own: a part of `Teller`."""

    objects: Objects
    routine: Routine
    emit: Callable[..., Event]
    _repeats: dict[tuple[str, int], int]

    def __init__(self) -> None:
        super().__init__()
        self.checkpoints = 0
        self.autocast_pending: list[tuple[HalfWatch, Any]] = []

    def mode(self, call: TrainCall) -> None:
        module = call.module
        if self.routine.expected("mode", module, call.frame, call.mode):
            return
        if next(module.parameters(), None) is None:
            return
        where = call.place
        if where is not None:
            known = self.objects.known(unwrap(module))
            self.emit(
                Kind.MODE,
                where,
                model=known or self.objects.model(module, where.at),
                mode="train" if call.mode else "eval",
            )

    def checkpointed(self, call: CheckpointCall) -> None:
        self.checkpoints += 1
        where = call.place
        if where is not None:
            modules = modules_in(call.function)
            norms = any(
                isinstance(m, nn.modules.batchnorm._BatchNorm) and m.training
                for held in modules
                for m in held.modules()
            )
            self.emit(Kind.CHECKPOINT, where, batchnorm=norms if modules else None)

    def anomaly(self, call: AnomalyCall) -> None:
        where = call.place
        if where is not None and not from_torch():  # compiling uses it too
            self.emit(Kind.ANOMALY, where)

    def autocast_off(self, call: AutocastOffCall) -> None:
        where = call.place
        if where is None or self._repeats.get((Kind.AUTOCAST_OFF.value, id(where.at)), 0) > 3:
            return
        watch = HalfWatch(self.emit(Kind.AUTOCAST_OFF, where))
        watch.__enter__()  # type: ignore[no-untyped-call]
        self.autocast_pending.append((watch, call.context))

    def autocast_on_again(self, call: AutocastOffCall) -> None:
        watch, pending = self.autocast_pending[-1] if self.autocast_pending else (None, None)
        if watch is not None and pending is call.context:
            self.autocast_pending.pop()
            watch.__exit__(None, None, None)  # type: ignore[no-untyped-call]
