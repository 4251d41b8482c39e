"""FL115: two networks; before the second one's step the first one is clipped."""

from __future__ import annotations

from torch import nn
from torch.nn.utils import clip_grad_norm_

from fallline.proof.experiment import Measured, experiment
from fallline.proof.experiments._training import Trainee, Window
from fallline.proof.experiments.gradients._misplaced_clip import MAX_NORM, against_an_outlier


@experiment(
    "FL115",
    claim="Clipping the wrong network leaves the gradients of the step unchanged: the run is bit for bit the same as without clipping.",
)
def clip_wrong_parameters() -> Measured:
    other = nn.Linear(8, 1)

    def clips_the_other(t: Trainee, window: Window) -> None:
        for x, y in window:
            (t.loss(x, y) + (other(x) - y).square().mean()).backward()
        clip_grad_norm_(other.parameters(), MAX_NORM)
        t.optimizer.step()
        t.optimizer.zero_grad()
        other.zero_grad()

    compared = against_an_outlier(clips_the_other)
    return Measured(
        sides=compared.sides(),
        conclusion=f"with the other network clipped at {MAX_NORM:g}, the outlier steps with norm {compared.wrong_norm:.0f} and the parameters differ by {compared.difference:g} from a run without clipping; "
        f"with its own parameters clipped it steps with {compared.right_norm:.2f}",
        holds=compared.holds(),
        curves=compared.curves(),
        axes=("update", "loss"),
    )
