"""DeepSpeed's ZeRO: gradients are in buffers of its own, on each rank a part of them. Here they are put together before each step.

What one backward adds is not seen there, only what reaches the optimizer. So the samples at once are one update of the engine's,
without accumulation.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from typing import Any

from torch import nn

from fallline.instruments.equal.record import Vectors, plain_name, sampled
from fallline.instruments.equal.way import Way
from fallline.taps.on_import import after_import
from fallline.taps.patches import Patches, Wrapped
from fallline.taps.tap import silence

__all__ = ["watch_zero"]

_ENGINE, _CONFIG = "deepspeed.runtime.engine", "deepspeed.runtime.config"


def watch_zero(patches: Patches, way: Way, take: Callable[[Vectors], None]) -> None:
    """`take` gets the whole gradients before each step of an engine with ZeRO."""
    after_import(_ENGINE, lambda: _patch_step(patches, take))
    if way.at_once > 1:
        after_import(_CONFIG, lambda: _patch_accumulation(patches))


def _patch_step(patches: Patches, take: Callable[[Vectors], None]) -> None:
    def make(original: Wrapped) -> Wrapped:
        def _take_model_step(self: Any, *args: Any, **kwargs: Any) -> Any:
            if self.zero_optimization():
                with silence():
                    take(_whole_gradients(self.module))
            return original(self, *args, **kwargs)

        return _take_model_step

    engine = getattr(sys.modules[_ENGINE], "DeepSpeedEngine", None)
    if hasattr(engine, "_take_model_step"):
        patches.patch(engine, "_take_model_step", make)


def _whole_gradients(model: nn.Module) -> Vectors:
    """On all ranks at the same time: the parts are summed."""
    utils: Any = importlib.import_module("deepspeed.utils")
    found = {}
    for name, parameter in model.named_parameters():
        if (
            parameter.requires_grad
            and (gradient := utils.safe_get_full_grad(parameter)) is not None
        ):
            found[plain_name(name)] = sampled(gradient)
    return found


def _patch_accumulation(patches: Patches) -> None:
    def make(original: Wrapped) -> Wrapped:
        def _configure_train_batch_size(self: Any) -> None:
            original(self)
            if self.zero_optimization_stage:
                self.train_micro_batch_size_per_gpu *= self.gradient_accumulation_steps
                self.gradient_accumulation_steps = 1

        return _configure_train_batch_size

    config = getattr(sys.modules[_CONFIG], "DeepSpeedConfig", None)
    if hasattr(config, "_configure_train_batch_size"):
        patches.patch(config, "_configure_train_batch_size", make)
