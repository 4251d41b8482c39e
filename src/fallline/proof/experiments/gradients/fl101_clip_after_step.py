"""FL101: the same run clipped after the step, never, and before it; one batch is an outlier."""

from __future__ import annotations

from torch.nn.utils import clip_grad_norm_

from fallline.proof.experiment import Measured, experiment
from fallline.proof.experiments._training import (
    Trainee,
    Window,
    clipped,
    largest,
    plain,
    train,
    uncleared,
)

MAX_NORM = 5.0
OUTLIER = 20


@experiment(
    "FL101",
    claim="Clipped after the step, the parameters are bit for bit those of a run without clipping; without zero_grad it changes later updates.",
    taught="Clipping after the step is merely useless.",
)
def clip_after_step() -> Measured:
    wrong = train(_clipped_after, outlier_at=OUTLIER)
    right = train(clipped(MAX_NORM), outlier_at=OUTLIER)
    never = train(plain, outlier_at=OUTLIER)
    difference = largest(wrong.parameters, never.parameters)
    carried = largest(
        train(_uncleared_clipped_after, updates=10).parameters,
        train(uncleared, updates=10).parameters,
    )
    return Measured(
        sides={
            "wrong": {
                "norm that stepped at the outlier": wrong.norms[OUTLIER],
                "loss right after it": wrong.losses[OUTLIER + 1],
                "difference to no clipping at all": difference,
                "difference without zero_grad": carried,
            },
            "right": {
                "norm that stepped at the outlier": right.norms[OUTLIER],
                "loss right after it": right.losses[OUTLIER + 1],
                "difference to no clipping at all": largest(right.parameters, never.parameters),
            },
        },
        conclusion=f"clipped at {MAX_NORM:g} after the step, the outlier steps with norm {wrong.norms[OUTLIER]:.0f} and the parameters differ "
        f"by {difference:g} from a run without clipping; clipped before, it steps with norm {right.norms[OUTLIER]:.2f}",
        holds={
            "after the step the clip changes nothing": difference == 0,
            "before the step it bounds the outlier": right.norms[OUTLIER] <= MAX_NORM * 1.001,
            "without zero_grad it changes later updates": carried > 1e-3,
        },
        curves={"wrong": wrong.losses, "right": right.losses},
        axes=("update", "loss"),
    )


def _clipped_after(t: Trainee, window: Window) -> None:
    for x, y in window:
        t.loss(x, y).backward()
    t.optimizer.step()
    clip_grad_norm_(t.model.parameters(), MAX_NORM)
    t.optimizer.zero_grad()


def _uncleared_clipped_after(t: Trainee, window: Window) -> None:
    uncleared(t, window)
    clip_grad_norm_(t.model.parameters(), MAX_NORM)
