"""The precision of a training script: one of its own updates is run again in every format, where it is."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fallline.instruments.at_backward import measure_micro_batch
from fallline.instruments.script import Ran, Script

if TYPE_CHECKING:
    from fallline.instruments.micro_batch import MicroBatch
    from fallline.instruments.precision.report import PrecisionReport

__all__ = ["precision_of_script"]


def precision_of_script(
    script: Script, *, update: int = 1, timing: bool = True
) -> tuple[PrecisionReport, Ran]:
    """Train up to this update, and run its first micro-batch in every format."""

    def measure(micro: MicroBatch) -> PrecisionReport:
        from fallline.instruments.precision.probe import probe_run

        report = probe_run(micro, device=micro.device, timing=timing)
        report.without_loss = micro.without_loss
        return report

    return measure_micro_batch(script, measure, update=update)
