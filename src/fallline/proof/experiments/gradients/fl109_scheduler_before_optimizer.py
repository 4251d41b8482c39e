"""FL109: which learning rates the updates really use, with the scheduler before and after the optimizer."""

from __future__ import annotations

import warnings
from collections.abc import Callable

import torch
from torch.optim.lr_scheduler import ExponentialLR

from fallline.proof.experiment import Measured, experiment

UPDATES = 8


@experiment(
    "FL109",
    claim="Advanced before the optimizer the schedule loses its first value and is one step early; torch warns once, and only for the first step.",
)
def scheduler_before_optimizer() -> Measured:
    wrong, warned = _rates(lambda update: "before")
    right, silent = _rates(lambda update: "after")
    _, late = _rates(lambda update: "after" if update == 0 else "before")
    return Measured(
        sides={
            "wrong": {
                "first update's rate": wrong[0],
                "warnings": warned,
                "warnings where only later updates are wrong": late,
            },
            "right": {"first update's rate": right[0], "warnings": silent},
        },
        conclusion=f"advanced first, {UPDATES} updates use the rates {wrong[0]:.2f} to {wrong[-1]:.3f} instead of {right[0]:.2f} to {right[-1]:.3f}; "
        f"torch warned {warned} time, and {late} times where only later updates are in the wrong order",
        holds={
            "the first value is skipped and everything is one early": wrong[:-1] == right[1:],
            "torch warns once": warned == 1,
            "only for the first step": late == 0,
            "the right order is silent": silent == 0,
        },
        curves={"wrong": wrong, "right": right},
        axes=("update", "learning rate it used"),
        positions=range(1, UPDATES + 1),
    )


def _rates(order: Callable[[int], str]) -> tuple[list[float], int]:
    """The rate of each update, and how many warnings there were."""
    weight = torch.ones(1, requires_grad=True)
    optimizer = torch.optim.SGD([weight], lr=1.0)
    schedule = ExponentialLR(optimizer, gamma=0.5)
    used = []
    with warnings.catch_warnings(record=True) as heard:
        warnings.simplefilter("always")
        for update in range(UPDATES):
            weight.sum().backward()
            if order(update) == "before":
                schedule.step()
            used.append(optimizer.param_groups[0]["lr"])
            optimizer.step()
            optimizer.zero_grad()
            if order(update) == "after":
                schedule.step()
    return used, len(heard)
