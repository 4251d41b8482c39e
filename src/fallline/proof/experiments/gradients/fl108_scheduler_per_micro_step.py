"""FL108: a cosine over 100 updates of 4 micro-batches, advanced once per update or once per micro-batch."""

from __future__ import annotations

import warnings

import torch
from torch.optim.lr_scheduler import CosineAnnealingLR

from fallline.proof.experiment import Measured, experiment

K = 4
UPDATES = 100
LR = 0.1


@experiment(
    "FL108",
    claim="Advanced on every micro-batch the schedule runs k times too fast: a cosine is at zero after a k-th of the run, then goes up and down.",
)
def scheduler_per_micro_step() -> Measured:
    wrong, right = _rates(per_micro_batch=True), _rates(per_micro_batch=False)
    quarters = [wrong[UPDATES * q // 4 - 1] for q in (1, 2, 3, 4)]
    return Measured(
        sides={
            "wrong": {
                "updates until the rate is below a hundredth": _used_up(wrong),
                "rate at the end": wrong[-1],
            },
            "right": {
                "updates until the rate is below a hundredth": _used_up(right),
                "rate at the end": right[-1],
            },
        },
        conclusion=f"advanced on each of {K} micro-batches, the rate is used up after {_used_up(wrong)} of {UPDATES} updates instead of {_used_up(right)}, "
        f"and at the quarters of the run it is {', '.join(f'{q:.1f}' for q in quarters)}",
        holds={
            "it is zero after a quarter of the run": quarters[0] < 1e-6,
            "then up, down and up again": quarters[1] > 0.99 * LR
            and quarters[2] < 1e-6
            and quarters[3] > 0.99 * LR,
            "once per update it falls to the very end": right == sorted(right, reverse=True)
            and right[-1] < 1e-6,
        },
        curves={"wrong": wrong, "right": right},
        axes=("update", "learning rate"),
    )


def _used_up(rates: list[float]) -> int:
    return 1 + next(i for i, rate in enumerate(rates) if rate < LR / 100)


def _rates(*, per_micro_batch: bool) -> list[float]:
    """The learning rate after each update."""
    weight = torch.ones(1, requires_grad=True)
    optimizer = torch.optim.SGD([weight], lr=LR)
    schedule = CosineAnnealingLR(optimizer, T_max=UPDATES)
    rates = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the wrong order of the first window is FL109's
        for micro_batch in range(UPDATES * K):
            (weight.square().sum() / K).backward()
            boundary = (micro_batch + 1) % K == 0
            if boundary:
                optimizer.step()
                optimizer.zero_grad()
            if boundary or per_micro_batch:
                schedule.step()
            if boundary:
                rates.append(float(schedule.get_last_lr()[0]))
    return rates
