"""FL112: gradients clipped by value and by norm, at the same limit."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.utils import clip_grad_norm_, clip_grad_value_

from fallline.proof.experiment import Measured, experiment
from fallline.proof.experiments._training import cosine

LIMIT = 0.5


@experiment(
    "FL112",
    claim="Clipping by value changes the direction of the update, clipping by norm keeps it; at the same limit, clipping by value is never the stricter of the two.",
    taught="Value clipping is the more aggressive of the two.",
)
def value_clipping() -> Measured:
    torch.manual_seed(0)
    spiked = torch.randn(100) * 0.4
    spiked[7] = 40.0
    many = torch.randn(1_000_000) * 0.4
    value_turned, norm_turned = cosine(_by_value(spiked), spiked), cosine(_by_norm(spiked), spiked)
    value_left, norm_left = _by_value(many).norm().item(), _by_norm(many).norm().item()
    # Gradients of many sizes and lengths: is any element smaller after clipping by value?
    stricter = sum(
        bool((_by_value(g).abs() < _by_norm(g).abs() - 1e-6).any())
        for g in (torch.randn(n) * 10.0**size for n in (1, 2, 10, 100) for size in range(-2, 3))
    )
    return Measured(
        sides={
            "wrong": {
                "cosine to a gradient with one spike": value_turned,
                "norm left of a million values of size 0.4": value_left,
            },
            "right": {
                "cosine to a gradient with one spike": norm_turned,
                "norm left of a million values of size 0.4": norm_left,
            },
        },
        conclusion=f"at a limit of {LIMIT:g}, by value turns a gradient with one spike to a cosine of {value_turned:.2f}, by norm to {norm_turned:.2f}; of a norm of "
        f"{many.norm():.0f} by value leaves {value_left:.0f}, by norm {norm_left:.1f}; by value was stricter in {stricter} of 20 cases",
        holds={
            "by value the direction changes": value_turned < 0.5,
            "by norm it stays": norm_turned > 1 - 1e-6,
            "at the same limit by value is never stricter": stricter == 0
            and value_left > norm_left,
        },
    )


def _by_value(values: Tensor) -> Tensor:
    parameter = torch.zeros_like(values, requires_grad=True)
    parameter.grad = values.clone()
    clip_grad_value_([parameter], LIMIT)
    return parameter.grad


def _by_norm(values: Tensor) -> Tensor:
    parameter = torch.zeros_like(values, requires_grad=True)
    parameter.grad = values.clone()
    clip_grad_norm_([parameter], LIMIT)
    return parameter.grad
