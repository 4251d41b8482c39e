"""DeepSpeed's engine: the loss as the user gives it, and an update as one step.

The engine divides and scales the loss, and its optimizers step torch's optimizer once for each group of parameters, or each part
of one, with copies in the place of the parameters.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import Any

from torch import Tensor
from torch.optim import Optimizer

from fallline.taps.clipping import listed, tap_clip
from fallline.taps.frames import caller
from fallline.taps.on_import import after_import
from fallline.taps.optimizers import joined
from fallline.taps.patches import Patches, Wrapped
from fallline.taps.tap import Call, Tap, Topic, published, silence

__all__ = ["ENGINE_BACKWARD", "ENGINE_STEP", "EngineBackward", "EngineStep"]

_HOME = "deepspeed.runtime.engine"
# Its optimizers, which take a step with zero gradients when they are made, so that the states are there.
_OPTIMIZERS = (
    "deepspeed.runtime.fp16.fused_optimizer",
    "deepspeed.runtime.fp16.unfused_optimizer",
    "deepspeed.runtime.zero.stage_1_and_2",
    "deepspeed.runtime.zero.stage3",
)
_PREPARES = "initialize_optimizer_states"


@dataclass(slots=True)
class EngineBackward(Call):
    """`engine.backward(loss)`. Only before."""

    loss: Any
    window: int  # micro-batches by which the engine divides; 1 where it does not
    scales: bool = False  # the engine multiplies the loss, and leaves out updates that overflow


@dataclass(slots=True)
class EngineStep(Call):
    """An update of the engine's, at the end of an accumulation window. Only after, and before the step of its optimizer ends."""

    optimizer: Optimizer | None
    applied: bool  # False: the gradients overflowed, and nothing was stepped
    norm: float | Tensor | None  # of all gradients on all ranks before clipping
    threshold: float | None
    scale: float | None  # of the loss
    rate: (
        float | None
    )  # the learning rate of this update: the engine's scheduler has moved on by now


def _install(patches: Patches) -> None:
    over = False

    def end() -> None:
        nonlocal over
        over = True

    def install() -> None:
        module = sys.modules[_HOME]
        engine = getattr(module, "DeepSpeedEngine", None)
        if over or engine is None or not hasattr(engine, "_take_model_step"):
            return
        patches.patch(engine, "backward", _backward)
        patches.patch(engine, "_take_model_step", _step)
        for made in _preparing():
            patches.patch(made, _PREPARES, _prepare)
        if hasattr(module, "clip_grad_norm_"):
            tap_clip(patches, module, "clip_grad_norm_", "norm", "max_norm", listed)

    patches.on_removal(end)
    after_import(_HOME, install)  # the script may never import it


def _preparing() -> list[type]:
    modules = [sys.modules[name] for name in _OPTIMIZERS if name in sys.modules]
    return [
        made
        for module in modules
        for made in vars(module).values()
        if isinstance(made, type) and made.__module__ == module.__name__ and _PREPARES in vars(made)
    ]


def _prepare(original: Wrapped) -> Wrapped:
    def initialize_optimizer_states(*args: Any, **kwargs: Any) -> Any:
        with silence():
            return original(*args, **kwargs)

    return initialize_optimizer_states


def _backward(original: Wrapped) -> Wrapped:
    def backward(self: Any, loss: Any, *args: Any, **kwargs: Any) -> Any:
        if published():
            divides = args[1] if len(args) > 1 else kwargs.get("scale_wrt_gas", True)
            window = int(self.gradient_accumulation_steps()) if divides else 1
            call = EngineBackward(caller(), loss, window, bool(self.fp16_enabled()))
            for handler in ENGINE_BACKWARD.before:
                handler(call)
        return original(self, loss, *args, **kwargs)

    return backward


def _step(original: Wrapped) -> Wrapped:
    def _take_model_step(self: Any, *args: Any, **kwargs: Any) -> Any:
        with joined():
            if not published():
                return original(self, *args, **kwargs)
            scale, rate = _scale(self), _rate(self)
            result = original(self, *args, **kwargs)
            call = EngineStep(
                caller(),
                getattr(self, "basic_optimizer", None),
                not getattr(self.optimizer, "overflow", False),
                self.get_global_grad_norm(),
                float(self.gradient_clipping()) or None,
                scale,
                rate,
            )
            for handler in ENGINE_STEP.after:
                handler(call)
        return result

    return _take_model_step


def _rate(engine: Any) -> float | None:
    groups = getattr(getattr(engine, "basic_optimizer", None), "param_groups", None)
    rate = groups[0].get("lr") if groups else None
    return float(rate) if isinstance(rate, int | float) else None


def _scale(engine: Any) -> float | None:
    """With which the gradients of this update were made."""
    scale = getattr(engine.optimizer, "loss_scale", None) if engine.fp16_enabled() else None
    return None if scale is None else float(scale)


_tap = Tap(_install)
ENGINE_BACKWARD = Topic(EngineBackward, _tap)
ENGINE_STEP = Topic(EngineStep, _tap)
