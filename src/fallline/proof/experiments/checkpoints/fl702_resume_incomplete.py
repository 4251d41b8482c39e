"""FL702: everything was saved, and only the weights are loaded."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from fallline.proof.experiment import Measured, experiment
from fallline.proof.experiments._training import off
from fallline.proof.experiments.checkpoints._run import HALF, Run, interrupted

TARGET = 2 * HALF  # updates that the program wants to make


@experiment(
    "FL702",
    claim="A resume that loads only the weights fails nowhere: the schedule starts again, the loss jumps, the run counts from 0 "
    "and ends on other weights.",
)
def resume_incomplete() -> Measured:
    saved, end = interrupted()
    wrong, right = _resume({"model": saved["model"]}, end), _resume(saved, end)
    return Measured(
        sides={
            "wrong": {
                "learning rate after the resume": wrong.rate,
                "highest of the next 10 losses, times the last one": wrong.jump,
                "updates made in all": HALF + wrong.made,
                "weights differ at the end": wrong.difference,
            },
            "right": {
                "learning rate after the resume": right.rate,
                "highest of the next 10 losses, times the last one": right.jump,
                "updates made in all": HALF + right.made,
                "weights differ at the end": right.difference,
            },
        },
        conclusion=f"with only the weights loaded the learning rate goes on at {wrong.rate:.2f} instead of {right.rate:.3f}, the loss jumps "
        f"{wrong.jump:.1f} times, {HALF + wrong.made} updates are made instead of {TARGET} and the weights end {wrong.difference:.0%} apart; "
        f"with everything loaded they differ by {right.difference:g}",
        holds={
            "the schedule starts again": wrong.rate > 5 * right.rate,
            "the loss jumps": wrong.jump > 1.5 > right.jump,
            "the run counts from 0": (wrong.made, right.made) == (TARGET, HALF),
            "the weights end elsewhere": wrong.difference > 0.01,
            "with everything loaded they end on the same bits": right.difference == 0,
        },
        curves={"wrong": wrong.losses[:HALF], "right": right.losses},
        axes=("update after the resume", "loss"),
    )


class _resume:
    """A new program that loads this state and trains on to its target."""

    def __init__(self, state: Mapping[str, Any], end: Tensor) -> None:
        run = Run()
        run.restore(state)
        self.rate = float(run.scheduler.get_last_lr()[0])
        before = run.loss()
        self.made = TARGET - run.done
        self.difference = off(run.updates(self.made), end)
        self.losses = run.losses
        self.jump = max(self.losses[:10]) / before
