"""FL104: k backward passes, one step, no division."""

from __future__ import annotations

import torch
from torch.nn.utils import clip_grad_norm_

from fallline.proof.experiment import Measured, experiment
from fallline.proof.experiments._training import Trainee, Window, clipped, plain, train

K = 4
LR = 0.08
BINDS = 0.5


@experiment(
    "FL104",
    claim="Without the division an SGD update is k times too long; Adam divides the factor out, and a clip that binds hides it.",
    taught="Not dividing the loss acts like a learning rate of k times, with any optimizer.",
)
def accumulation_unscaled() -> Measured:
    wrong, right = train(_undivided, k=K, lr=LR), train(plain, k=K, lr=LR)
    adam_wrong = train(_undivided, k=K, optimizer=torch.optim.Adam)
    adam_right = train(plain, k=K, optimizer=torch.optim.Adam)
    sgd = wrong.steps[0] / right.steps[0]
    adam = adam_wrong.steps[0] / adam_right.steps[0]
    bound = train(_undivided_clipped, k=K).steps[0] / train(clipped(BINDS), k=K).steps[0]
    return Measured(
        sides={
            "wrong": {
                "first step, SGD": wrong.steps[0],
                "first step, Adam": adam_wrong.steps[0],
                "norm at the first step": wrong.norms[0],
                "loss after 40 updates, SGD": wrong.losses[-1],
            },
            "right": {
                "first step, SGD": right.steps[0],
                "first step, Adam": adam_right.steps[0],
                "norm at the first step": right.norms[0],
                "loss after 40 updates, SGD": right.losses[-1],
            },
        },
        conclusion=f"with k = {K} the first SGD step is {sgd:.2f} times as long as it should be, Adam's {adam:.4f} times, "
        f"and with a clip that binds {bound:.4f} times",
        holds={
            "SGD's first step is k times too long": abs(sgd - K) < 1e-3,
            "the norm is k times too large": abs(wrong.norms[0] / right.norms[0] - K) < 1e-3,
            "Adam's first step is within a thousandth": abs(adam - 1) < 1e-3,
            "a clip that binds hides it": abs(bound - 1) < 1e-3,
        },
        curves={"wrong": wrong.losses, "right": right.losses},
        axes=("update", "loss (SGD)"),
    )


def _undivided(t: Trainee, window: Window) -> None:
    for x, y in window:
        t.loss(x, y).backward()
    t.optimizer.step()
    t.optimizer.zero_grad()


def _undivided_clipped(t: Trainee, window: Window) -> None:
    for x, y in window:
        t.loss(x, y).backward()
    clip_grad_norm_(t.model.parameters(), BINDS)
    t.optimizer.step()
    t.optimizer.zero_grad()
