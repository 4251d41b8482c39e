"""Custom Functions: what autograd checks about the gradients they return, and what it does not."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from fallline.proof.experiment import Measured, experiment
from fallline.proof.experiments._measures import error_of


@experiment(
    "wrong-shape-gradients-are-summed",
    claim="A custom Function's gradient of a wrong but broadcastable shape is summed in silence; only incompatible shapes raise.",
)
def wrong_shape_gradients_are_summed() -> Measured:
    right, silent = _double_with(lambda g: 2 * g), _double_with(lambda g: 2 * g.expand(5, 3))
    raised = error_of(lambda: _double_with(lambda g: torch.ones(7)))
    return Measured(
        sides={
            "gradient of shape (3,)": {"what arrives": f"{right:g}", "raises": "none"},
            "gradient of shape (5, 3)": {"what arrives": f"{silent:g}", "raises": "none"},
            "gradient of shape (7,)": {"what arrives": "nothing", "raises": raised},
        },
        conclusion=f"a gradient of shape (5, 3) for an input of (3,) arrives as {silent:g} instead of {right:g}; one of shape (7,) raises {raised}",
        holds={
            "the right shape arrives as it is": right == 2,
            "a wrong one is summed in silence": silent == 5 * right,
            "incompatible raises": raised == "RuntimeError",
        },
    )


def _double_with(given: Callable[[Tensor], Tensor]) -> float:
    """x doubled by a custom Function with this backward; the gradient that reaches x."""

    class Double(torch.autograd.Function):
        @staticmethod
        def forward(ctx: object, x: Tensor) -> Tensor:
            return 2 * x

        @staticmethod
        def backward(ctx: object, grad: Tensor) -> Tensor:
            return given(grad)

    x = torch.ones(3, requires_grad=True)
    out = Double.apply(x)
    assert isinstance(out, Tensor)
    out.sum().backward()
    assert x.grad is not None
    return x.grad[0].item()
