"""The model that a training script trains, with the batch and the loss of one of its updates."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fallline.instruments.at_backward import measure_micro_batch
from fallline.instruments.script import Ran, Script

if TYPE_CHECKING:
    from torch import nn

    from fallline.instruments.micro_batch import MicroBatch
    from fallline.instruments.model.report import ModelReport

__all__ = ["model_of_script"]


def model_of_script(script: Script, *, update: int = 1) -> tuple[ModelReport, Ran]:
    """Train up to this update, and look at the model with its first micro-batch; afterwards, at its optimizers."""

    def measure(micro: MicroBatch) -> tuple[ModelReport, nn.Module]:
        from fallline.instruments.model.measure import measure_micro

        return measure_micro(micro, update)

    (report, model), ran = measure_micro_batch(script, measure, update=update)
    if ran.optimizers:
        from fallline.instruments.model.registered import not_optimized

        report.not_optimized = not_optimized(model, ran.optimizers)
        own = {id(p) for p in model.parameters()}
        held = {id(p): p for o in ran.optimizers for g in o.param_groups for p in g["params"]}
        report.elsewhere = sum(p.numel() for at, p in held.items() if at not in own)
    return report, ran
