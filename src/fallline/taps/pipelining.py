"""torch's pipeline schedules: a stage divides the gradients of its micro-batches when the last of them is done."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import Any

from fallline.taps.frames import caller
from fallline.taps.on_import import after_import
from fallline.taps.patches import Patches, Wrapped
from fallline.taps.tap import Call, Tap, Topic, published

__all__ = ["STAGE_SCALED", "StageScaled"]

_HOME = "torch.distributed.pipelining.stage"


@dataclass(slots=True)
class StageScaled(Call):
    """`schedule.step(...)` has divided the gradients of a stage by the number of its micro-batches. Only after."""

    parameters: list[Any]


def _install(patches: Patches) -> None:
    over = False

    def end() -> None:
        nonlocal over
        over = True

    def install() -> None:
        stage = getattr(sys.modules[_HOME], "_PipelineStageBase", None)
        if not over and hasattr(stage, "scale_grads"):
            patches.patch(stage, "scale_grads", _scale_grads)

    patches.on_removal(end)
    after_import(_HOME, install)  # the script may never import it


def _scale_grads(original: Wrapped) -> Wrapped:
    def scale_grads(self: Any, grad_scale_factor: int, *args: Any, **kwargs: Any) -> Any:
        result = original(self, grad_scale_factor, *args, **kwargs)
        if grad_scale_factor != 1 and published():
            call = StageScaled(caller(), list(self.submod.parameters()))
            for handler in STAGE_SCALED.after:
                handler(call)
        return result

    return scale_grads


STAGE_SCALED = Topic(StageScaled, Tap(_install))
