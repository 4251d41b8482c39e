"""FL102: the same run clipped before backward, after it, and never; and with old gradients left."""

from __future__ import annotations

import warnings

from torch.nn.utils import clip_grad_norm_

from fallline.proof.experiment import Measured, experiment
from fallline.proof.experiments._training import Trainee, Window, largest, train, uncleared
from fallline.proof.experiments.gradients._misplaced_clip import MAX_NORM, against_an_outlier


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
        compared = against_an_outlier(clipped_early)
    with_clip, without = train(_uncleared_clipped_early, updates=10), train(uncleared, updates=10)
    carried = largest(with_clip.parameters, without.parameters)
    return Measured(
        sides=compared.sides(),
        conclusion=f"before backward the clip returned {max(returned):g} in all {len(returned)} updates, with {len(heard)} warnings, and the outlier stepped with norm {compared.wrong_norm:.0f}; "
        f"clipped after backward it stepped with {compared.right_norm:.2f}",
        holds={
            **compared.holds(),
            "the clip always returns 0": max(returned) == 0,
            "nothing warns": not heard,
            "where old gradients are still there, it shrinks those": carried > 1e-3,
        },
        curves=compared.curves(),
        axes=("update", "loss"),
    )


def _uncleared_clipped_early(t: Trainee, window: Window) -> None:
    clip_grad_norm_(t.model.parameters(), MAX_NORM)
    uncleared(t, window)
