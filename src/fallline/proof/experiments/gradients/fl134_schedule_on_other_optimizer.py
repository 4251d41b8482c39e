"""FL134: the learning rates that the updates use when the scheduler holds an optimizer that was replaced."""

from __future__ import annotations

import warnings

import torch
from torch.optim.lr_scheduler import ExponentialLR

from fallline.proof.experiment import Measured, experiment

UPDATES = 8


@experiment(
    "FL134",
    claim="A scheduler that holds an optimizer which was replaced never changes the learning rate of the one that steps.",
)
def schedule_on_other_optimizer() -> Measured:
    wrong, right = _rates(replaced=True), _rates(replaced=False)
    return Measured(
        sides={
            "wrong": {"first update's rate": wrong[0], "last update's rate": wrong[-1]},
            "right": {"first update's rate": right[0], "last update's rate": right[-1]},
        },
        conclusion=f"built on the replaced optimizer, the schedule leaves the rate at {wrong[-1]:.2f} for all {UPDATES} updates; "
        f"built on the one that steps, it falls from {right[0]:.2f} to {right[-1]:.4f}",
        holds={
            "the rate of the one that steps never changes": len(set(wrong)) == 1,
            "built on it, the rate falls with every update": sorted(right, reverse=True) == right
            and len(set(right)) == UPDATES,
        },
        curves={"wrong": wrong, "right": right},
        axes=("update", "learning rate it used"),
        positions=range(1, UPDATES + 1),
    )


def _rates(*, replaced: bool) -> list[float]:
    """The rate of each update."""
    weight = torch.ones(1, requires_grad=True)
    optimizer = torch.optim.SGD([weight], lr=1.0)
    schedule = ExponentialLR(optimizer, gamma=0.5)
    if replaced:
        optimizer = torch.optim.SGD([weight], lr=1.0)
    used = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch notices that the old optimizer does not step
        for _ in range(UPDATES):
            weight.sum().backward()
            used.append(optimizer.param_groups[0]["lr"])
            optimizer.step()
            schedule.step()
    return used
