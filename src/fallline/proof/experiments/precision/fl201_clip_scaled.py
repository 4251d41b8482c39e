"""FL201: clip before or after unscale_, with SGD and with Adam, at three scales."""

from __future__ import annotations

import torch
from torch.nn.utils import clip_grad_norm_

from fallline.proof.experiment import Measured, experiment
from fallline.proof.experiments._training import Trainee, Window, clipped, largest, train
from fallline.proof.experiments.precision._scaled import scaled, scaled_backward

MAX_NORM = 1.0
SCALE = 65536.0


@experiment(
    "FL201",
    claim="Clipped while still scaled, the threshold applied is max_norm / scale: SGD stands still, Adam goes on as normalised-gradient Adam, nothing raises.",
    taught="The clip has no effect, because the effective threshold is max_norm times the scale, and training may diverge.",
)
def clip_scaled() -> Measured:
    wrong, right = train(_clipped_scaled), train(scaled(MAX_NORM))
    adam_wrong = train(_clipped_scaled, optimizer=torch.optim.Adam)
    adam_right = train(scaled(MAX_NORM), optimizer=torch.optim.Adam)
    slower = right.steps[0] / wrong.steps[0]
    adam = adam_right.steps[0] / adam_wrong.steps[0]
    # The same run without any scaling, clipped at max_norm / scale.
    same = largest(wrong.parameters, train(clipped(MAX_NORM / SCALE)).parameters)
    halved = train(_clipped_scaled, updates=1, init_scale=SCALE / 2).norms[0] / wrong.norms[0]
    return Measured(
        sides={
            "wrong": {
                "norm that steps": wrong.norms[0],
                "first step, SGD": wrong.steps[0],
                "loss after 40 updates, SGD": wrong.losses[-1],
                "loss after 40 updates, Adam": adam_wrong.losses[-1],
            },
            "right": {
                "norm that steps": right.norms[0],
                "first step, SGD": right.steps[0],
                "loss after 40 updates, SGD": right.losses[-1],
                "loss after 40 updates, Adam": adam_right.losses[-1],
            },
        },
        conclusion=f"the norm that steps is {wrong.norms[0]:.2g} instead of {right.norms[0]:.1f}, SGD's first step is {slower:,.0f} times too short and its loss stays at {wrong.losses[-1]:.1f} "
        f"instead of {right.losses[-1]:.1f}; Adam's step is {adam:.2f} times too short and its loss ends at {adam_wrong.losses[-1]:.1f} and {adam_right.losses[-1]:.1f}",
        holds={
            "the threshold applied is max_norm / scale": abs(
                max(wrong.norms) * SCALE / MAX_NORM - 1
            )
            < 1e-3,
            "every update is clipped": min(wrong.norms) > 0.999 * max(wrong.norms),
            "it is the run with that threshold": same < 1e-6,
            "half the scale is twice the threshold": abs(halved - 2) < 1e-3,
            "SGD stands still": wrong.losses[-1] > 0.99 * wrong.losses[0],
            "Adam goes on": adam_wrong.losses[-1] < 0.2 * adam_wrong.losses[0],
        },
        curves={"wrong": wrong.losses, "right": right.losses, "wrong, Adam": adam_wrong.losses},
        axes=("update", "loss"),
    )


def _clipped_scaled(t: Trainee, window: Window) -> None:
    scaled_backward(t, window)
    clip_grad_norm_(t.model.parameters(), MAX_NORM)
    t.scaler.step(t.optimizer)
    t.scaler.update()
    t.optimizer.zero_grad()
