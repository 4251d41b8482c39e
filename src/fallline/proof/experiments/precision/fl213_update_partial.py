"""FL213: scaler.update() in the middle of an accumulation window."""

from __future__ import annotations

import torch

from fallline.proof.experiment import Measured, experiment
from fallline.proof.experiments._measures import error_of
from fallline.proof.experiments._training import Trainee, Window, off, train
from fallline.proof.experiments.precision._scaled import scaled

K = 4


@experiment(
    "FL213",
    claim="update() inside the window raises AssertionError where nothing stepped or unscaled; where something did, a scale that changes there mixes micro-batches of different scales.",
)
def update_partial() -> Measured:
    raised: list[str] = []

    def update_between(t: Trainee, window: Window) -> None:
        t.scaler.scale(t.loss(*window[0]) / K).backward()
        raised.append(error_of(t.scaler.update))

    train(update_between, updates=1, k=K)
    wrong = train(_other_steps_between, updates=1, k=K, growth_interval=1)
    right = train(scaled(), updates=1, k=K, growth_interval=1)
    steady = train(_other_steps_between, updates=1, k=K, growth_interval=2000)
    away, still = (off(run.gradients[0], right.gradients[0]) for run in (wrong, steady))
    return Measured(
        sides={
            "wrong": {
                "update() inside the window raises": raised[0],
                "gradient off by, percent, where the scale doubled halfway": 100 * away,
                "norm that steps": wrong.norms[0],
            },
            "right": {
                "gradient off by, percent, where the scale doubled halfway": 0.0,
                "norm that steps": right.norms[0],
            },
            "the same, and the scale stayed": {
                "gradient off by, percent, where the scale doubled halfway": 100 * still,
                "norm that steps": steady.norms[0],
            },
        },
        conclusion=f"update() inside the window raises {raised[0]}; after another optimizer's step it does not, and when the scale doubles halfway through {K} micro-batches the gradient is {away:.0%} off; where it stays, {still:.0%}",
        holds={
            "it raises where nothing was unscaled": raised == ["AssertionError"],
            "where the scale doubles halfway the gradient is wrong": away > 0.15,
            "where it stays the gradient is right": still < 1e-5,
        },
    )


def _other_steps_between(t: Trainee, window: Window) -> None:
    """A second optimizer shares the scaler and steps after the second micro-batch: update() doubles the scale there."""
    weight = torch.ones(1, requires_grad=True)
    other = torch.optim.SGD([weight], lr=0.1)
    for i, (x, y) in enumerate(window):
        t.scaler.scale(t.loss(x, y) / K).backward()
        if i == 1:
            t.scaler.scale(weight.sum()).backward()
            t.scaler.step(other)
            t.scaler.update()
    t.scaler.step(t.optimizer)
    t.scaler.update()
