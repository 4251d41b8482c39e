"""FL124: a threshold below every norm against one that catches outliers only, with SGD and with Adam."""

from __future__ import annotations

import torch

from fallline.proof.experiment import Measured, experiment
from fallline.proof.experiments._training import clipped, train

LOW, HIGH = 0.1, 5.0
LR = 0.05


@experiment(
    "FL124",
    claim="Where every update is clipped each SGD step has the size threshold times learning rate, however long the gradient is; Adam divides the length out anyway.",
    taught="Clipping in every iteration makes learning very slow, with any optimizer.",
)
def over_clipping() -> Measured:
    wrong, right = train(clipped(LOW), lr=LR), train(clipped(HIGH), lr=LR)
    adam_wrong = train(clipped(LOW), lr=LR, optimizer=torch.optim.Adam)
    adam_right = train(clipped(HIGH), lr=LR, optimizer=torch.optim.Adam)
    even, uneven = (max(r.steps) / min(r.steps) for r in (wrong, right))
    return Measured(
        sides={
            "wrong": {
                "longest over shortest SGD step": even,
                "loss after 40 updates, SGD": wrong.losses[-1],
                "loss after 40 updates, Adam": adam_wrong.losses[-1],
            },
            "right": {
                "longest over shortest SGD step": uneven,
                "loss after 40 updates, SGD": right.losses[-1],
                "loss after 40 updates, Adam": adam_right.losses[-1],
            },
        },
        conclusion=f"clipped at {LOW:g} all 40 SGD steps are {LOW * LR:g} long and the loss ends at {wrong.losses[-1]:.1f} instead of {right.losses[-1]:.1f}; "
        f"with Adam it ends at {adam_wrong.losses[-1]:.1f} and {adam_right.losses[-1]:.1f}",
        holds={
            "every step is threshold times learning rate": all(
                abs(step / (LOW * LR) - 1) < 1e-3 for step in wrong.steps
            ),
            "with a threshold for outliers the steps follow the gradient": uneven > 3,
            "SGD learns far less": wrong.losses[-1] > 10 * right.losses[-1],
            "Adam learns all the same": 5 * adam_wrong.losses[-1] < adam_wrong.losses[0],
        },
        curves={"wrong": wrong.steps, "right": right.steps},
        axes=("update", "length of the SGD step"),
    )
