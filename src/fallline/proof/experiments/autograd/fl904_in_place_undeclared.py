"""FL904: forward changes its input in place and does not say so."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd import Function

from fallline.proof.experiment import Measured, experiment


@experiment(
    "FL904",
    claim="An undeclared in-place change leaves the caller's tensor with new values and its old history: the gradient is 24 "
    "instead of 72, and a parameter is overwritten; with mark_dirty the gradient is right and torch refuses the parameter.",
)
def in_place_undeclared() -> Measured:
    wrong, right = _gradient(_Triple), _gradient(_TripleDeclared)
    wrong_parameter, right_parameter = _on_a_parameter(_Triple), _on_a_parameter(_TripleDeclared)
    numeric = _numeric_gradient()
    return Measured(
        sides={
            "wrong": {"gradient": wrong, "a parameter of 1 passed in": wrong_parameter},
            "right": {"gradient": right, "a parameter of 1 passed in": right_parameter},
            "by finite differences": {"gradient": numeric},
        },
        conclusion=f"the gradient is {wrong:.0f} without mark_dirty and {right:.0f} with it, {numeric:.0f} by finite differences",
        holds={
            "undeclared, the gradient is 24": wrong == 24,
            "declared, it is 72": right == 72,
            "which is what finite differences say": abs(numeric - 72) < 0.1,
            "a parameter is overwritten in silence": wrong_parameter == "is now 3.0",
            "with mark_dirty torch refuses": right_parameter == "RuntimeError",
        },
    )


class _Triple(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        x.mul_(3)
        return x.clone()

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        return 3 * grad


class _TripleDeclared(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        x.mul_(3)
        ctx.mark_dirty(x)
        return x

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        return 3 * grad


def _gradient(triple: type[Function]) -> float:
    """z = 2 * w is tripled in place, and the loss is z * z: 36 * w * w."""
    w = torch.ones((), requires_grad=True)
    z = 2 * w
    triple.apply(z)
    (z * z).backward()
    assert w.grad is not None
    return w.grad.item()


def _numeric_gradient(step: float = 1e-3) -> float:
    def loss(w: float) -> float:
        z = 2 * torch.tensor(w, dtype=torch.float64)
        z.mul_(3)
        return (z * z).item()

    return (loss(1 + step) - loss(1 - step)) / (2 * step)


def _on_a_parameter(triple: type[Function]) -> str:
    parameter = nn.Parameter(torch.ones(()))
    try:
        triple.apply(parameter)
    except RuntimeError as error:
        return type(error).__name__
    return f"is now {parameter.item()}"
