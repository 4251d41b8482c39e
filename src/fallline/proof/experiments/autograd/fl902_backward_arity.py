"""FL902: a backward that returns too few gradients, or too many."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function

from fallline.proof.experiment import Measured, experiment


@experiment(
    "FL902",
    claim="backward has to return one gradient for each input of forward: fewer raise, a surplus gradient raises, surplus "
    "Nones are ignored.",
)
def backward_arity() -> Measured:
    few, surplus = _gradient(_TooFew), _gradient(_Surplus)
    nones, right = _gradient(_SurplusNone), _gradient(_OneEach)
    return Measured(
        sides={
            "wrong": {"outcome": few},
            "right": {"outcome": right},
            "a surplus gradient": {"outcome": surplus},
            "a surplus None": {"outcome": nones},
        },
        conclusion=f'one gradient for two inputs: "{few}"; a gradient and a None: {right}',
        holds={
            "too few gradients raise": few == _message("_TooFew", got=1),
            "a surplus gradient raises": surplus == _message("_Surplus", got=3),
            "surplus Nones are ignored": nones == right == "gradient 2.0",
        },
    )


def _message(name: str, got: int) -> str:
    return (
        f"function {name}Backward returned an incorrect number of gradients (expected 2, got {got})"
    )


class _Scale(Function):
    """x times a plain number; each subclass returns its own number of gradients."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, by: float) -> Tensor:
        ctx.by = by
        return x * by


class _TooFew(_Scale):
    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        return grad * ctx.by


class _Surplus(_Scale):
    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        return grad * ctx.by, None, grad


class _SurplusNone(_Scale):
    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        return grad * ctx.by, None, None


class _OneEach(_Scale):
    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        return grad * ctx.by, None


def _gradient(function: type[Function]) -> str:
    x = torch.ones((), requires_grad=True)
    try:
        function.apply(x, 2.0).backward()
    except RuntimeError as error:
        return str(error)
    return f"gradient {x.grad}"
