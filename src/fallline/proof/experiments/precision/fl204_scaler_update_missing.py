"""FL204: the second iteration without scaler.update(), and what update() does to the scale."""

from __future__ import annotations

from functools import partial

import torch

from fallline.proof.experiment import Measured, experiment
from fallline.proof.experiments._measures import error_of

GROWTH = 2000


@experiment(
    "FL204",
    claim="Without update() the next step of this optimizer raises RuntimeError; update() also halves the scale after an overflow and doubles it after 2000 clean steps.",
    taught="The scale doubles after each success and halves after each overflow.",
)
def scaler_update_missing() -> Measured:
    again, unscale_again = _second_iteration(update=False)
    right, right_unscale = _second_iteration(update=True)
    scaler, optimizer = _scaler_and_optimizer()
    scales = []
    for _ in range(GROWTH):
        _iteration(scaler, optimizer, 1.0)
        scaler.update()
        scales.append(scaler.get_scale())
    grown = next(i for i, scale in enumerate(scales, 1) if scale > scales[0])
    _iteration(scaler, optimizer, float("inf"))
    scaler.update()
    halved = scaler.get_scale() / scales[-1]
    return Measured(
        sides={
            "wrong": {"next step raises": again, "next unscale_ raises": unscale_again},
            "right": {
                "next step raises": right,
                "next unscale_ raises": right_unscale,
                "clean steps until the scale doubles": grown,
                "scale after an overflow, times": halved,
            },
        },
        conclusion=f"without update() the next step raises {again}; with it {right}, the scale goes from {scales[0]:,.0f} to {scales[-1]:,.0f} after {grown} clean steps and to {halved:g} of that after one overflow",
        holds={
            "the next step raises": again == unscale_again == "RuntimeError",
            "with update() nothing raises": right == right_unscale == "none",
            "the scale doubles after 2000 clean steps": grown == GROWTH
            and scales[-1] == 2 * scales[0],
            "an overflow halves it": halved == 0.5,
        },
    )


def _scaler_and_optimizer() -> tuple[torch.amp.GradScaler, torch.optim.Optimizer]:
    return torch.amp.GradScaler("cpu"), torch.optim.SGD([torch.ones(1, requires_grad=True)], lr=0.0)


def _iteration(
    scaler: torch.amp.GradScaler, optimizer: torch.optim.Optimizer, factor: float
) -> None:
    (weight,) = optimizer.param_groups[0]["params"]
    optimizer.zero_grad()
    scaler.scale(factor * weight.sum()).backward()
    scaler.step(optimizer)


def _second_iteration(*, update: bool) -> tuple[str, str]:
    """What step, and what unscale_, raise in the second iteration."""
    errors = []
    for call in (torch.amp.GradScaler.step, torch.amp.GradScaler.unscale_):
        scaler, optimizer = _scaler_and_optimizer()
        _iteration(scaler, optimizer, 1.0)
        if update:
            scaler.update()
        errors.append(error_of(partial(call, scaler, optimizer)))
    return errors[0], errors[1]
