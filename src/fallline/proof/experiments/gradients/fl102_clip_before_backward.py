"""FL102: clipped before backward, never, and after it; one batch is an outlier."""

from __future__ import annotations

import warnings

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
    "FL102",
    claim="Clipping before backward returns 0 without a warning and leaves the update unclipped; old gradients it shrinks.",
)
def clip_before_backward() -> Measured:
    returned: list[float] = []

    def clipped_early(t: Trainee, window: Window) -> None:
        t.optimizer.zero_grad()
        for x, y in window:
            loss = t.loss(x, y)
            returned.append(clip_grad_norm_(t.model.parameters(), MAX_NORM).item())
            loss.backward()
        t.optimizer.step()

    with warnings.catch_warnings(record=True) as heard:
        warnings.simplefilter("always")
        wrong = train(clipped_early, outlier_at=OUTLIER)
    right = train(clipped(MAX_NORM), outlier_at=OUTLIER)
    difference = largest(wrong.parameters, train(plain, outlier_at=OUTLIER).parameters)
    carried = largest(
        train(_uncleared_clipped_early, updates=10).parameters,
        train(uncleared, updates=10).parameters,
    )
    return Measured(
        sides={
            "wrong": {
                "norm that stepped at the outlier": wrong.norms[OUTLIER],
                "largest value the clip returned": max(returned),
                "warnings": len(heard),
                "difference to no clipping at all": difference,
                "difference where old gradients are left": carried,
            },
            "right": {"norm that stepped at the outlier": right.norms[OUTLIER]},
        },
        conclusion=f"before backward the clip returned {max(returned):g} in all {len(returned)} updates, with {len(heard)} warnings, and the outlier "
        f"stepped with norm {wrong.norms[OUTLIER]:.0f}; clipped after backward it stepped with {right.norms[OUTLIER]:.2f}",
        holds={
            "the clip always returns 0": max(returned) == 0,
            "nothing warns": not heard,
            "the run is bit for bit the unclipped one": difference == 0,
            "after backward the outlier is bounded": right.norms[OUTLIER] <= MAX_NORM * 1.001,
            "where old gradients are still there, it shrinks those": carried > 1e-3,
        },
        curves={"wrong": wrong.losses, "right": right.losses},
        axes=("update", "loss"),
    )


def _uncleared_clipped_early(t: Trainee, window: Window) -> None:
    clip_grad_norm_(t.model.parameters(), MAX_NORM)
    uncleared(t, window)
