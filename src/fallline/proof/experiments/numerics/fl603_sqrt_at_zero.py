"""FL603: the square root of something that can be exactly zero."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor, nn

from fallline.proof.experiment import Measured, experiment
from fallline.proof.experiments.numerics._at import nonfinite, slope, words

Distance = Callable[[Tensor], Tensor]


@experiment(
    "FL603",
    claim="One exact hit under sqrt((a - b)**2) leaves the loss finite and makes every gradient NaN; abs, vector_norm and "
    "cdist handle zero.",
    taught="sqrt(clamp((a - b)**2, min=0)) is stable.",
)
def sqrt_at_zero() -> Measured:
    wrong_loss, wrong = _gradients(lambda d: (d**2).sqrt())
    right_loss, right = _gradients(torch.abs)
    _, epsilon = _gradients(lambda d: (d**2 + 1e-12).sqrt())
    _, norm = _gradients(lambda d: torch.linalg.vector_norm(d, dim=-1))
    _, cdist = _gradients(lambda d: torch.cdist(d, torch.zeros_like(d[:1])))
    _, clamped_at_hit = _gradients(lambda d: (d**2).clamp(min=0).sqrt())
    clamped = slope(lambda x: x.clamp(min=0).sqrt(), 1e-12)
    second = _second_derivative_of_norm()
    return Measured(
        sides={
            "wrong": {
                "loss": wrong_loss,
                "NaN gradients": wrong,
                "slope of sqrt(clamp(x, min=0)) at 1e-12": clamped,
                "second derivative of a norm at 0": words(second),
            },
            "right": {"loss": right_loss, "NaN gradients": right},
            "sqrt(clamp(x, min=0))": {"NaN gradients": clamped_at_hit},
            "sqrt(x + 1e-12)": {"NaN gradients": epsilon},
            "vector_norm": {"NaN gradients": norm},
            "cdist": {"NaN gradients": cdist},
        },
        conclusion=f"with one exact hit among 8 the loss is {wrong_loss:.3f} either way, and {wrong} of 5 gradients are NaN "
        f"with sqrt((a - b)**2), {right} with abs",
        holds={
            "the loss is finite and the same": abs(wrong_loss - right_loss) < 1e-6,
            "every gradient is NaN": wrong == 5,
            "abs, an epsilon, vector_norm and cdist give none": right + epsilon + norm + cdist == 0,
            "a clamp at 0 leaves the slope unbounded": clamped > 1e5,
            "the second derivative of a norm at 0 is NaN": math.isnan(second),
        },
    )


def _gradients(distance: Distance) -> tuple[float, int]:
    """The loss of 8 predictions of which one is exact, and how many of 5 gradients are not finite."""
    torch.manual_seed(0)
    model, x = nn.Linear(4, 1), torch.randn(8, 4)
    prediction = model(x)
    target = torch.randn(8, 1)
    target[0] = prediction[0].detach()
    loss = distance(prediction - target).mean()
    loss.backward()
    return loss.item(), nonfinite(p.grad for p in model.parameters())


def _second_derivative_of_norm() -> float:
    """What a gradient penalty meets where the vector is zero."""
    x = torch.zeros(3, requires_grad=True)
    (first,) = torch.autograd.grad(torch.linalg.vector_norm(x), x, create_graph=True)
    (second,) = torch.autograd.grad(first.sum(), x)
    return float(second.sum())
