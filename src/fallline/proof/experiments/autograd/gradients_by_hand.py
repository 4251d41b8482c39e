"""Gradients that are not the derivative: straight through, and reversed."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from fallline.proof.experiment import Measured, experiment


class _Reverse(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Tensor:
        return -grads[0]


def _slope(function: Any) -> tuple[Tensor, Tensor]:
    x = torch.linspace(-2, 2, 9, requires_grad=True)
    value = function(x)
    (grad,) = torch.autograd.grad(value.sum(), x)
    return value.detach(), grad


@experiment(
    "straight-through-without-a-function",
    claim="x + (round(x) - x).detach() has the value of round and the gradient of x, without a Function; round alone has gradient zero. A Function that returns -grad reverses it.",
    taught="A straight-through estimator needs a custom Function.",
)
def straight_through_without_a_function() -> Measured:
    x = torch.linspace(-2, 2, 9)
    plain = _slope(torch.round)
    straight = _slope(lambda t: t + (t.round() - t).detach())
    reverse = _slope(_Reverse.apply)
    return Measured(
        sides={
            "round": {"gradient": plain[1].abs().max().item()},
            "straight through": {
                "largest difference to round": (straight[0] - x.round()).abs().max().item(),
                "gradient": straight[1].mean().item(),
            },
            "reversed": {"gradient": reverse[1].mean().item()},
        },
        conclusion=f"the gradient is {plain[1].abs().max().item():g} through round, {straight[1].mean().item():g} straight through it with the same values, and {reverse[1].mean().item():g} reversed",
        holds={
            "round has no gradient": bool((plain[1] == 0).all()),
            "straight through has round's values": bool(torch.equal(straight[0], x.round())),
            "and x's gradient": bool((straight[1] == 1).all()),
            "reversed is the opposite, the values as they were": bool((reverse[1] == -1).all())
            and bool(torch.equal(reverse[0], x)),
        },
    )
