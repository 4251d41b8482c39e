"""Loss scaling: `scaler.scale(loss)`, `unscale_`, `step` and `update` of an enabled GradScaler."""

from __future__ import annotations

from dataclasses import dataclass
from threading import get_ident
from typing import Any

import torch

from fallline.taps.frames import caller
from fallline.taps.patches import Patches, Wrapped
from fallline.taps.tap import Call, Tap, Topic, new, published, switch, thread

__all__ = [
    "SCALE",
    "SCALER_STEP",
    "SCALER_UPDATE",
    "UNSCALE",
    "ScaleCall",
    "ScalerStepCall",
    "ScalerUpdateCall",
    "UnscaleCall",
]


@dataclass(slots=True)
class ScaleCall(Call):
    """A loss was multiplied by the scale. Only after."""

    scaler: Any
    outputs: Any  # the loss, unscaled


@dataclass(slots=True)
class UnscaleCall(Call):
    """Gradients are divided by the scale. torch raises on a second time; `before` is called all the same."""

    scaler: Any
    optimizer: Any


@dataclass(slots=True)
class ScalerStepCall(Call):
    """The scaler steps an optimizer, or does not where it has met an infinity. `after` is called also if it raises."""

    scaler: Any
    optimizer: Any  # perhaps a framework's wrapper
    raised: bool = False


@dataclass(slots=True)
class ScalerUpdateCall(Call):
    """The scale is adapted."""

    scaler: Any


def _install(patches: Patches) -> None:
    scaler = torch.amp.grad_scaler.GradScaler
    patches.patch(scaler, "scale", _scale)
    patches.patch(scaler, "unscale_", _unscale)
    patches.patch(scaler, "step", _step)
    patches.patch(scaler, "update", _update)


def _scale(original: Wrapped) -> Wrapped:
    def scale(self: Any, outputs: Any) -> Any:
        scaled = original(self, outputs)
        if (
            not self._enabled
            or switch.quiet
            or (thread.ident != get_ident() and thread.keeps_out())
        ):
            return scaled
        call = new(ScaleCall)
        call.frame, call.scaler, call.outputs = caller(), self, outputs
        for handler in SCALE.after:
            handler(call)
        return scaled

    return scale


def _unscale(original: Wrapped) -> Wrapped:
    def unscale_(self: Any, optimizer: Any) -> Any:
        if not self._enabled or _Stepping.inside or not published():
            return original(self, optimizer)
        return UNSCALE.around(UnscaleCall(caller(), self, optimizer), original, self, optimizer)

    return unscale_


class _Stepping:
    """A step of the scaler unscales by itself, which is not the user's call."""

    inside = False


def _step(original: Wrapped) -> Wrapped:
    def step(self: Any, optimizer: Any, *args: Any, **kwargs: Any) -> Any:
        if switch.replaying:
            return None
        if (
            not self._enabled
            or switch.quiet
            or (thread.ident != get_ident() and thread.keeps_out())
        ):
            return original(self, optimizer, *args, **kwargs)
        call = new(ScalerStepCall)
        call.frame, call.scaler = caller(), self
        call.optimizer, call.raised = optimizer, False
        for handler in SCALER_STEP.before:
            handler(call)
        outer, _Stepping.inside = _Stepping.inside, True
        call.raised = True
        try:
            result = original(self, optimizer, *args, **kwargs)
            call.raised = False
        finally:
            _Stepping.inside = outer
            for after in SCALER_STEP.after:
                after(call)
        return result

    return step


def _update(original: Wrapped) -> Wrapped:
    def update(self: Any, *args: Any, **kwargs: Any) -> Any:
        if switch.replaying:
            return None
        if (
            not self._enabled
            or switch.quiet
            or (thread.ident != get_ident() and thread.keeps_out())
        ):
            return original(self, *args, **kwargs)
        call = new(ScalerUpdateCall)
        call.frame, call.scaler = caller(), self
        for handler in SCALER_UPDATE.before:
            handler(call)
        result = original(self, *args, **kwargs)
        for handler in SCALER_UPDATE.after:
            handler(call)
        return result

    return update


_tap = Tap(_install)
SCALE = Topic(ScaleCall, _tap)
UNSCALE = Topic(UnscaleCall, _tap)
SCALER_STEP = Topic(ScalerStepCall, _tap)
SCALER_UPDATE = Topic(ScalerUpdateCall, _tap)
