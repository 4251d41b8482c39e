"""FL101: the same run clipped after the step, before it, and never; and without zero_grad."""

from __future__ import annotations

from torch.nn.utils import clip_grad_norm_

from fallline.proof.experiment import Measured, experiment
from fallline.proof.experiments._training import Trainee, Window, largest, train, uncleared
from fallline.proof.experiments.gradients._misplaced_clip import MAX_NORM, against_an_outlier


@experiment(
    "FL101",
    claim="Clipped after the step, the parameters are bit for bit those of a run without clipping; without zero_grad it changes later updates.",
    taught="Clipping after the step is merely useless.",
)
def clip_after_step() -> Measured:
    compared = against_an_outlier(_clipped_after)
    with_clip, without = train(_uncleared_clipped_after, updates=10), train(uncleared, updates=10)
    carried = largest(with_clip.parameters, without.parameters)
    return Measured(
        sides=compared.sides(),
        conclusion=f"clipped at {MAX_NORM:g} after the step, the outlier steps with norm {compared.wrong_norm:.0f} and the parameters differ by {compared.difference:g} from a run without clipping; "
        f"clipped before, it steps with norm {compared.right_norm:.2f}; without zero_grad the late clip moves the parameters by {carried:.2f} in 10 updates",
        holds={
            **compared.holds(),
            "without zero_grad it changes later updates": carried > 1e-3,
        },
        curves=compared.curves(),
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
