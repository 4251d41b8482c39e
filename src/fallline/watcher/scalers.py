"""Loss scaling: which scalers there are, what they scale, and which one is about to step."""

from __future__ import annotations

import weakref
from typing import Any

from torch import Tensor

from fallline.events import Backward, ScalerUpdate, Unscale
from fallline.taps.scaling import (
    SCALE,
    SCALER_UPDATE,
    UNSCALE,
    ScaleCall,
    ScalerUpdateCall,
    UnscaleCall,
)
from fallline.taps.tap import Subscription
from fallline.watcher.emit import Emitter, spot
from fallline.watcher.facts import inner_of
from fallline.watcher.fuse import Fuse
from fallline.watcher.objects import Objects
from fallline.watcher.progress import Draft
from fallline.watcher.routine import Routine

__all__ = ["Scalers"]


class Scalers:
    """The enabled GradScalers of a run."""

    def __init__(self, emitter: Emitter, routine: Routine, objects: Objects, draft: Draft) -> None:
        self._emitter = emitter
        self._routine = routine
        self._objects = objects
        self._draft = draft
        self._known: weakref.WeakSet[Any] = weakref.WeakSet()
        self._last: weakref.ref[Any] | None = None  # that has scaled a loss
        self.any = False
        self.stepping: Any = None  # the scaler that is stepping an optimizer now
        self.unscaled: Any = None  # the loss that was scaled last, before that

    def subscribe(self, taps: Subscription, fuse: Fuse) -> None:
        taps.after(SCALE, fuse.guarded(self._scaled))
        unless_expected = self._routine.unless_expected
        taps.before(UNSCALE, unless_expected("unscale", "scaler", self._unscale, fuse))
        taps.before(SCALER_UPDATE, unless_expected("scaler_update", "scaler", self._update, fuse))

    @property
    def scales(self) -> list[Tensor]:
        return [s._scale for s in self._known] if self.any else []

    def name(self, scaler: Any) -> str:
        return self._objects.name("scaler", scaler, enabled=bool(scaler._enabled))

    def of(self, event: Backward) -> str | None:
        """The scaler that has scaled this loss."""
        scaler = next(iter(self._known), None) if event.scaled else None
        return self._objects.known(scaler) if scaler is not None else None

    def value(self) -> float | None:
        """The scale of the update in progress, where it costs no wait."""
        scale = self._draft.scale
        on_cpu = isinstance(scale, Tensor) and scale.device.type == "cpu"
        return float(scale) if on_cpu else None

    def _scaled(self, call: ScaleCall) -> None:
        scaler = call.scaler
        if self._last is None or self._last() is not scaler:
            self._known.add(scaler)
            self.any, self._last = True, weakref.ref(scaler)
            self.name(scaler)
        self._draft.scale = scaler._scale
        if isinstance(call.outputs, Tensor):
            self.unscaled = call.outputs.detach()

    def _unscale(self, call: UnscaleCall) -> None:
        at, callers = spot(call.place)
        held = self._objects.optimizer(inner_of(call.optimizer))
        self._emitter.emit(
            Unscale(at, callers=callers, scaler=self.name(call.scaler), optimizer=held)
        )

    def _update(self, call: ScalerUpdateCall) -> None:
        at, callers = spot(call.place)
        self._emitter.emit(ScalerUpdate(at, callers=callers, scaler=self.name(call.scaler)))
