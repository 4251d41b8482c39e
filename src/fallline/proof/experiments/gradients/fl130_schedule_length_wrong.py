"""FL130: where a cosine schedule is at the end of a run that accumulates, with a length in micro-batches and in updates."""

from __future__ import annotations

import torch
from torch.optim.lr_scheduler import CosineAnnealingLR

from fallline.proof.experiment import Measured, experiment

MICRO_BATCHES, WINDOW = 400, 4


@experiment(
    "FL130",
    claim="A cosine whose length counts micro-batches, advanced once per window of 4, ends the run after a quarter of its length, near its highest rate.",
)
def schedule_length_wrong() -> Measured:
    wrong, right = _rates(MICRO_BATCHES), _rates(MICRO_BATCHES // WINDOW)
    return Measured(
        sides={
            "wrong": {"rate at the end, percent of the first": 100 * wrong[-1]},
            "right": {"rate at the end, percent of the first": 100 * right[-1]},
        },
        conclusion=f"at the end of the run the rate is {100 * wrong[-1]:.0f} % of the first one instead of {100 * right[-1]:.2g} %",
        holds={
            "it has hardly decayed": 0.84 < wrong[-1] < 0.87,
            "with a length in updates it is over": right[-1] < 0.001,
        },
        curves={"wrong": wrong, "right": right},
        axes=("update", "learning rate"),
    )


def _rates(length: int) -> list[float]:
    weight = torch.ones(1, requires_grad=True)
    optimizer = torch.optim.SGD([weight], lr=1.0)
    schedule = CosineAnnealingLR(optimizer, T_max=length)
    used = []
    for _ in range(MICRO_BATCHES // WINDOW):
        used.append(optimizer.param_groups[0]["lr"])
        weight.sum().backward()
        optimizer.step()
        schedule.step()
    return used
