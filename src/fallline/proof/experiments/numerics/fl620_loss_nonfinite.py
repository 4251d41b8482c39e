"""FL620: one step with a loss that is not finite."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils import clip_grad_norm_

from fallline.proof.experiment import Measured, experiment
from fallline.proof.experiments.numerics._at import nonfinite, words

Loss = Callable[[Tensor, Tensor], Tensor]


@experiment(
    "FL620",
    claim="A step with a loss of log(0) or NaN makes every parameter it reaches NaN; a learning rate a billion times smaller or "
    "clipping changes nothing, the stable form of the operation does. Where a square overflowed, the gradient is finite and the step throws the parameters far away.",
    taught="Clip any time the loss goes to NaN.",
)
def loss_nonfinite() -> Measured:
    loss, broken, weights = _one_update(_by_hand)
    _, slower, _ = _one_update(_by_hand, lr=1e-10)
    _, clipped, _ = _one_update(_by_hand, clip=True)
    _, unknown, _ = _one_update(_to(float("nan")))
    far_loss, far, _ = _one_update(_to(1e20))
    fused_loss, fused, _ = _one_update(F.cross_entropy)
    return Measured(
        sides={
            "wrong": {
                "loss": words(loss),
                "NaN weights after one step": broken,
                "with a learning rate of 1e-10": slower,
                "with clipping": clipped,
                "NaN weights after one step, a target of NaN": unknown,
                "loss, a square that overflows": words(far_loss),
                "NaN weights after one step, a square that overflows": far,
            },
            "right": {"loss": fused_loss, "NaN weights after one step": fused},
        },
        conclusion=f"one step with a loss of {loss} makes {broken} of {weights} weights NaN, also at a learning rate of 1e-10 ({slower}) and "
        f"with clipping ({clipped}); with cross_entropy {fused}. Where a square overflows the loss is {far_loss} too, its gradient is finite and {far} weights are NaN",
        holds={
            "every weight is NaN": broken == weights,
            "a tiny learning rate changes nothing": slower == weights,
            "clipping changes nothing": clipped == weights,
            "a NaN loss does the same": unknown == weights,
            "the stable form keeps all of them": fused == 0,
            "a square that overflows leaves them finite": far_loss == float("inf") and far == 0,
        },
    )


def _by_hand(logits: Tensor, target: Tensor) -> Tensor:
    return -torch.log(torch.softmax(logits, 1))[torch.arange(len(target)), target].mean()


def _to(target: float) -> Loss:
    """The squared distance to this target, for every output."""
    return lambda outputs, _: (outputs - target).square().mean()


def _one_update(
    loss_function: Loss, *, lr: float = 0.1, clip: bool = False
) -> tuple[float, int, int]:
    """The loss of a batch with one sample far out, and how many weights are NaN after its step."""
    torch.manual_seed(0)
    model = nn.Linear(8, 5)
    optimizer = torch.optim.SGD(model.parameters(), lr=lr)
    x = torch.randn(16, 8)
    x[0] *= 1000
    loss = loss_function(model(x), model(x).argmin(1))
    loss.backward()
    if clip:
        clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    weights = sum(p.numel() for p in model.parameters())
    return loss.item(), nonfinite(model.parameters()), weights
