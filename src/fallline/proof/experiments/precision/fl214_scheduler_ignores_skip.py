"""FL214: five iterations of which the scaler skips one, with a scheduler that always advances and one that asks."""

from __future__ import annotations

import warnings
from dataclasses import dataclass

import torch
from torch.optim.lr_scheduler import ExponentialLR

from fallline.proof.experiment import Measured, experiment

ITERATIONS = 5


@experiment(
    "FL214",
    claim="After a skipped step the learning rate runs ahead of the updates; torch warns only where the very first step is skipped, and never with a fused optimizer.",
)
def scheduler_ignores_skip() -> Measured:
    wrong, right = _iterate(skip_at=2), _iterate(skip_at=2, asks=True)
    first, fused = _iterate(skip_at=0), _iterate(skip_at=0, fused=True)
    return Measured(
        sides={
            "wrong": {
                "steps of the scheduler": wrong.advanced,
                "updates made": wrong.updates,
                "warnings": wrong.warnings,
                "warnings, first step skipped": first.warnings,
                "warnings, first step skipped, fused": fused.warnings,
            },
            "right": {
                "steps of the scheduler": right.advanced,
                "updates made": right.updates,
                "warnings": right.warnings,
            },
        },
        conclusion=f"after one skip in {ITERATIONS} iterations {wrong.updates} updates have the learning rate of {wrong.advanced} with {wrong.warnings} warnings, and of {right.advanced} where the scheduler asks the scale; "
        f"with the first step skipped torch gives {first.warnings} warning, {fused.warnings} with a fused optimizer",
        holds={
            "the rate runs ahead": wrong.updates == 4 and wrong.advanced == 5,
            "asking the scale keeps them together": right.updates == right.advanced == 4,
            "a later skip is silent": wrong.warnings == 0,
            "the first one warns": first.warnings == 1,
            "never with a fused optimizer": fused.warnings == 0 and fused.updates == 4,
        },
    )


@dataclass
class _Seen:
    updates: int
    advanced: int
    warnings: int


def _iterate(*, skip_at: int, asks: bool = False, fused: bool = False) -> _Seen:
    weight = torch.ones(1, requires_grad=True)
    optimizer = torch.optim.Adam([weight], lr=1.0, fused=fused)
    scaler = torch.amp.GradScaler("cpu")
    schedule = ExponentialLR(optimizer, gamma=0.5)
    updates = 0
    with warnings.catch_warnings(record=True) as heard:
        warnings.simplefilter("always")
        for i in range(ITERATIONS):
            before, scale = weight.detach().clone(), scaler.get_scale()
            scaler.scale(weight.sum() * (float("inf") if i == skip_at else 1.0)).backward()
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
            if not asks or scaler.get_scale() >= scale:
                schedule.step()
            updates += int(not torch.equal(before, weight.detach()))
    halvings = torch.tensor(1.0 / optimizer.param_groups[0]["lr"]).log2()
    return _Seen(updates, round(float(halvings)), len(heard))
