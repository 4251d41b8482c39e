"""FL207: float16 autocast with and without loss scaling, for a loss that gets smaller and smaller."""

from __future__ import annotations

from math import log10

import torch

from fallline.proof.experiment import Measured, experiment
from fallline.proof.experiments.precision._small_gradients import (
    gradients_under_autocast,
    zero_share,
)

SCALE = 65536.0
FACTORS = (1.0, 1e-1, 1e-2, 1e-3, 1e-4, 1e-5)


@experiment(
    "FL207",
    claim="Gradients below about 3e-8 are zero in float16 and vanish silently; how many depends on their size, and a scaler keeps them.",
)
def scaler_missing() -> Measured:
    wrong = {f: zero_share(gradients_under_autocast(torch.float16, factor=f)) for f in FACTORS}
    right = {
        f: zero_share(gradients_under_autocast(torch.float16, factor=f, scale=SCALE))
        for f in FACTORS
    }
    smallest = torch.finfo(torch.float16).smallest_normal * torch.finfo(torch.float16).eps
    kept, gone = (torch.tensor([v * smallest]).half().item() for v in (0.51, 0.49))
    return Measured(
        sides={
            "wrong": {
                f"zero gradients, percent, loss times {f:g}": 100 * s for f, s in wrong.items()
            },
            "right": {
                f"zero gradients, percent, loss times {f:g}": 100 * s for f, s in right.items()
            },
        },
        conclusion=f"with the loss multiplied by 1, 1e-4 and 1e-5, {wrong[1.0]:.0%}, {wrong[1e-4]:.0%} and {wrong[1e-5]:.0%} of the gradients are zero without a scaler and {right[1e-5]:.0%} with one; "
        f"the smallest float16 above zero is {smallest:.1e}",
        holds={
            "what is under half of the smallest float16, 6e-8, is zero": kept > 0 and gone == 0,
            "with ordinary gradients little is lost": wrong[1.0] < 0.05,
            "with small ones nearly all": wrong[1e-5] > 0.9,
            "a scaler keeps them": right[1e-5] < 0.05,
        },
        curves={
            "wrong": [100 * s for s in wrong.values()],
            "right": [100 * s for s in right.values()],
        },
        axes=("size of the loss, power of ten", "zero gradients, percent"),
        positions=[log10(f) for f in FACTORS],
    )
