"""FL206: bfloat16 with and without a scaler: what it gains and what it costs; float16 beside it."""

from __future__ import annotations

import torch

from fallline.proof.experiment import Measured, experiment
from fallline.proof.experiments._operations import operations
from fallline.proof.experiments._training import Trainee, Window, plain, train
from fallline.proof.experiments.precision._scaled import scaled_backward
from fallline.proof.experiments.precision._small_gradients import (
    gradients_under_autocast,
    zero_share,
)

SCALE = 65536.0
TINY = 1e-5


@experiment(
    "FL206",
    claim="In bfloat16 small gradients do not vanish, so scaling gains nothing; the scaler still costs a pass over all gradients and a wait for the device in every step.",
)
def scaler_with_bfloat16() -> Measured:
    wrong = zero_share(gradients_under_autocast(torch.bfloat16, factor=TINY, scale=SCALE))
    right = zero_share(gradients_under_autocast(torch.bfloat16, factor=TINY))
    half = zero_share(gradients_under_autocast(torch.float16, factor=TINY))
    with_scaler = operations(lambda: train(_scaled, updates=1))
    without = operations(lambda: train(plain, updates=1))
    passes = with_scaler["_amp_foreach_non_finite_check_and_unscale_"]
    waits = with_scaler["_local_scalar_dense"] - without["_local_scalar_dense"]
    return Measured(
        sides={
            "wrong": {
                "extra passes over all gradients": passes,
                "extra waits for the device": waits,
                "gradients that are zero, percent": 100 * wrong,
            },
            "right": {
                "extra passes over all gradients": 0,
                "extra waits for the device": 0,
                "gradients that are zero, percent": 100 * right,
                "gradients that are zero, percent, in float16": 100 * half,
            },
        },
        conclusion=f"of gradients so small that float16 loses {half:.0%}, bfloat16 loses {right:.0%} without a scaler and {wrong:.0%} with one; "
        f"the scaler adds {passes} pass over the gradients and {waits} wait for each step",
        holds={
            "bfloat16 loses nothing without a scaler": right == 0,
            "float16 would": half > 0.5,
            "the scaler adds a pass over the gradients": passes == 1,
            "and a wait": waits >= 1,
        },
    )


def _scaled(t: Trainee, window: Window) -> None:
    scaled_backward(t, window)
    t.scaler.step(t.optimizer)
    t.scaler.update()
    t.optimizer.zero_grad()
