"""FL129: a framework's backward that divides by k, called with a loss that was divided by k already."""

from __future__ import annotations

import torch

from fallline.proof.experiment import Measured, experiment
from fallline.proof.experiments._training import Trainee, Window, plain, train

K = 4


@experiment(
    "FL129",
    claim="Divided twice the gradient is k times too small: SGD learns with a k-th of its learning rate, Adam hides most of it.",
)
def loss_divided_twice() -> Measured:
    # `plain` divides once, as the framework does; its learning rate over k is the same run.
    wrong, right = train(_divided_twice, k=K), train(plain, k=K)
    slower = train(plain, k=K, lr=0.05 / K)
    sgd = right.steps[0] / wrong.steps[0]
    adam_wrong = train(_divided_twice, k=K, optimizer=torch.optim.Adam)
    adam_right = train(plain, k=K, optimizer=torch.optim.Adam)
    adam = adam_right.steps[0] / adam_wrong.steps[0]
    same = float((wrong.parameters - slower.parameters).abs().max())
    return Measured(
        sides={
            "wrong": {
                "first step, SGD": wrong.steps[0],
                "first step, Adam": adam_wrong.steps[0],
                "loss after 40 updates, SGD": wrong.losses[-1],
                "loss after 40 updates, Adam": adam_wrong.losses[-1],
            },
            "right": {
                "first step, SGD": right.steps[0],
                "first step, Adam": adam_right.steps[0],
                "loss after 40 updates, SGD": right.losses[-1],
                "loss after 40 updates, Adam": adam_right.losses[-1],
            },
        },
        conclusion=f"with k = {K} the first SGD step is {sgd:.2f} times too short, Adam's {adam:.4f} times; after 40 updates SGD is at {wrong.losses[-1]:.2f} instead of {right.losses[-1]:.2f}",
        holds={
            "SGD's step is k times too short": abs(sgd - K) < 1e-3,
            "SGD runs with a k-th of its learning rate": same < 1e-4,
            "Adam's first step is within a thousandth": abs(adam - 1) < 1e-3,
        },
        curves={"wrong": wrong.losses, "right": right.losses},
        axes=("update", "loss (SGD)"),
    )


def _divided_twice(t: Trainee, window: Window) -> None:
    for x, y in window:
        loss = t.loss(x, y) / K  # the user's division
        (loss / K).backward()  # the framework's, inside its own backward
    t.optimizer.step()
    t.optimizer.zero_grad()
