"""FL115: two networks; before the second one's step the first one is clipped."""

from __future__ import annotations

from torch import nn
from torch.nn.utils import clip_grad_norm_

from fallline.proof.experiment import Measured, experiment
from fallline.proof.experiments._training import (
    Trainee,
    Update,
    Window,
    clipped,
    largest,
    plain,
    train,
)

MAX_NORM = 5.0
OUTLIER = 20


@experiment(
    "FL115",
    claim="Clipping another network leaves the step's own gradients as they are: the run is bit for bit the one without clipping.",
)
def clip_wrong_parameters() -> Measured:
    wrong = train(_clips_the_other(), outlier_at=OUTLIER)
    right = train(clipped(MAX_NORM), outlier_at=OUTLIER)
    difference = largest(wrong.parameters, train(plain, outlier_at=OUTLIER).parameters)
    return Measured(
        sides={
            "wrong": {
                "norm that stepped at the outlier": wrong.norms[OUTLIER],
                "loss right after it": wrong.losses[OUTLIER + 1],
                "difference to no clipping at all": difference,
            },
            "right": {
                "norm that stepped at the outlier": right.norms[OUTLIER],
                "loss right after it": right.losses[OUTLIER + 1],
            },
        },
        conclusion=f"with the other network clipped at {MAX_NORM:g}, the outlier steps with norm {wrong.norms[OUTLIER]:.0f} and the parameters differ by {difference:g} "
        f"from a run without clipping; with its own parameters clipped it steps with {right.norms[OUTLIER]:.2f}",
        holds={
            "the clip does nothing for this network": difference == 0,
            "its own clip bounds the outlier": right.norms[OUTLIER] <= MAX_NORM * 1.001,
        },
        curves={"wrong": wrong.losses, "right": right.losses},
        axes=("update", "loss"),
    )


def _clips_the_other() -> Update:
    other = nn.Linear(8, 1)

    def update(t: Trainee, window: Window) -> None:
        for x, y in window:
            (t.loss(x, y) + (other(x) - y).square().mean()).backward()
        clip_grad_norm_(other.parameters(), MAX_NORM)
        t.optimizer.step()
        t.optimizer.zero_grad()
        other.zero_grad()

    return update
