"""FL125: a threshold that never binds, no clipping at all, and a threshold near the norms, when an outlier comes."""

from __future__ import annotations

from statistics import median

import torch
from torch.nn.utils import clip_grad_norm_

from fallline.proof.experiment import Measured, experiment
from fallline.proof.experiments._operations import operations
from fallline.proof.experiments._training import clipped, largest, plain, train

IDLE = 1000.0
OUTLIER = 20


@experiment(
    "FL125",
    claim="A threshold that never binds changes no bit, costs a pass over the gradients to measure and one to multiply by one, and lets an outlier through.",
    taught="Clipping is one pass, and multiplies only where the norm exceeds the threshold.",
)
def idle_clipping() -> Measured:
    usual = median(train(plain).norms)
    wrong = train(clipped(IDLE), outlier_at=OUTLIER)
    right = train(clipped(3 * usual), outlier_at=OUTLIER)
    difference = largest(train(clipped(IDLE)).parameters, train(plain).parameters)
    weight = torch.zeros(4, requires_grad=True)
    weight.grad = torch.ones(4)
    ran = operations(lambda: clip_grad_norm_([weight], IDLE))
    return Measured(
        sides={
            "wrong": {
                "outlier's norm over the usual one": wrong.norms[OUTLIER] / usual,
                "loss right after the outlier": wrong.losses[OUTLIER + 1],
                "difference to no clipping, without an outlier": difference,
                "passes that only measure": ran["_foreach_norm"],
                "passes that multiply by one": ran["_foreach_mul_"],
            },
            "right": {
                "outlier's norm over the usual one": right.norms[OUTLIER] / usual,
                "loss right after the outlier": right.losses[OUTLIER + 1],
            },
        },
        conclusion=f"with a threshold of {IDLE:g} the parameters differ by {difference:g} from those of no clipping, and an outlier of more than 100 times the usual norm steps unclipped; "
        f"with three times the usual norm it steps with {right.norms[OUTLIER] / usual:.1f} times",
        holds={
            "it changes no bit": difference == 0,
            "it still measures and multiplies": ran["_foreach_norm"] == 1
            and ran["_foreach_mul_"] == 1,
            "an outlier far above ten times the usual norm passes": wrong.norms[OUTLIER]
            > 100 * usual,
            "a threshold near the norms stops it": right.norms[OUTLIER] <= 3.01 * usual,
        },
        curves={"wrong": wrong.losses, "right": right.losses},
        axes=("update", "loss"),
    )
