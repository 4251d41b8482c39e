"""Events of modes: train and eval, checkpointed blocks, anomaly mode, autocast that is switched off."""

from __future__ import annotations

from typing import Any

from torch import nn

from fallline.events import Anomaly, AutocastOff, Checkpoint, Mode
from fallline.replay.modules import unwrap
from fallline.taps.frames import from_torch
from fallline.taps.modes import (
    ANOMALY,
    AUTOCAST_OFF,
    CHECKPOINT,
    TRAIN,
    AnomalyCall,
    AutocastOffCall,
    CheckpointCall,
    TrainCall,
)
from fallline.taps.tap import Subscription
from fallline.watcher.emit import Emitter, spot
from fallline.watcher.facts import HalfWatch, modules_in
from fallline.watcher.fuse import Fuse
from fallline.watcher.log import EventLog
from fallline.watcher.objects import Objects
from fallline.watcher.progress import Progress
from fallline.watcher.routine import Routine

__all__ = ["Modes"]

MOST_BLOCKS = 3  # without autocast, from one line in one update


class Modes:
    """What is switched on and off."""

    def __init__(
        self,
        emitter: Emitter,
        routine: Routine,
        objects: Objects,
        progress: Progress,
        log: EventLog,
    ) -> None:
        self._emitter = emitter
        self._routine = routine
        self._objects = objects
        self._progress = progress
        self._log = log
        self._blocks: list[tuple[HalfWatch, Any]] = []  # without autocast, that we are in

    def subscribe(self, taps: Subscription, fuse: Fuse) -> None:
        taps.before(TRAIN, fuse.guarded(self._train))
        taps.before(CHECKPOINT, fuse.guarded(self._checkpoint))
        taps.before(ANOMALY, fuse.guarded(self._anomaly))
        taps.before(AUTOCAST_OFF, fuse.guarded(self._autocast_off))
        taps.after(AUTOCAST_OFF, fuse.guarded(self._autocast_on_again))

    def _train(self, call: TrainCall) -> None:
        module = call.module
        if self._routine.expected("mode", module, call.frame, call.mode):
            return
        where = call.place if next(module.parameters(), None) is not None else None
        if where is not None:
            known = self._objects.known(unwrap(module)) or self._objects.model(module, where.at)
            at, callers = spot(where)
            mode: Any = "train" if call.mode else "eval"
            self._emitter.emit(Mode(at, callers=callers, model=known, mode=mode))

    def _checkpoint(self, call: CheckpointCall) -> None:
        self._progress.checkpoints += 1
        where = call.place
        if where is not None:
            modules = modules_in(call.function)
            norms = any(
                isinstance(m, nn.modules.batchnorm._BatchNorm) and m.training
                for held in modules
                for m in held.modules()
            )
            at, callers = spot(where)
            self._emitter.emit(
                Checkpoint(at, callers=callers, batchnorm=norms if modules else None)
            )

    def _anomaly(self, call: AnomalyCall) -> None:
        where = call.place
        if where is not None and not from_torch():  # compiling uses it too
            at, callers = spot(where)
            self._emitter.emit(Anomaly(at, callers=callers))

    def _autocast_off(self, call: AutocastOffCall) -> None:
        where = call.place
        if where is None or self._log.repeats(AutocastOff, where.at) > MOST_BLOCKS:
            return
        at, callers = spot(where)
        watch = HalfWatch(self._emitter.emit(AutocastOff(at, callers=callers)))
        watch.__enter__()  # type: ignore[no-untyped-call]
        self._blocks.append((watch, call.context))

    def _autocast_on_again(self, call: AutocastOffCall) -> None:
        if self._blocks and self._blocks[-1][1] is call.context:
            watch, _ = self._blocks.pop()
            watch.__exit__(None, None, None)  # type: ignore[no-untyped-call]
