"""FL208: a scaler with float16 parameters, and a hundred small updates of a float16 weight."""

from __future__ import annotations

import torch

from fallline.proof.experiment import Measured, experiment
from fallline.proof.experiments._measures import error_of

UPDATES = 100
STEP = 1e-4


@experiment(
    "FL208",
    claim="The scaler refuses float16 gradients with a ValueError; and float16 parameters lose updates that are smaller than their own rounding.",
)
def half_parameters_scaled() -> Measured:
    wrong, right = _scaled_step(torch.float16), _scaled_step(torch.float32)
    half, full = _after_small_updates(torch.float16), _after_small_updates(torch.float32)
    return Measured(
        sides={
            "wrong": {"scaler.step raises": wrong, "a weight of 1 after 100 updates of 1e-4": half},
            "right": {"scaler.step raises": right, "a weight of 1 after 100 updates of 1e-4": full},
        },
        conclusion=f"with float16 parameters scaler.step raises {wrong}, with float32 {right}; {UPDATES} updates of {STEP:g} leave a float16 weight of 1 at {half:g} and take a float32 one to {full:.2f}",
        holds={
            "the scaler refuses float16 gradients": wrong == "ValueError",
            "with float32 parameters it steps": right == "none",
            "a float16 weight does not move": half == 1.0,
            "a float32 weight does": abs(full - (1 - UPDATES * STEP)) < 1e-5,
        },
    )


def _scaled_step(dtype: torch.dtype) -> str:
    weight = torch.ones(4, dtype=dtype, requires_grad=True)
    optimizer = torch.optim.SGD([weight], lr=0.1)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    scaler.scale(weight.float().sum()).backward()
    return error_of(lambda: scaler.step(optimizer))


def _after_small_updates(dtype: torch.dtype) -> float:
    weight = torch.ones(1, dtype=dtype, requires_grad=True)
    optimizer = torch.optim.SGD([weight], lr=STEP)
    for _ in range(UPDATES):
        optimizer.zero_grad()
        weight.sum().backward()
        optimizer.step()
    return float(weight.detach())
