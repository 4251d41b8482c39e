"""FL126: a head replaced after the optimizer was built, and before."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn.functional import mse_loss

from fallline.proof.experiment import Measured, experiment
from fallline.proof.experiments._tasks import regression
from fallline.proof.experiments._training import flat


@experiment(
    "FL126",
    claim="Parameters that belong to no optimizer receive gradients and stay at their random start while the rest trains around them.",
)
def parameters_not_optimized() -> Measured:
    wrong, wrong_moved, norm = _train(head_first=False)
    right, right_moved, _ = _train(head_first=True)
    return Measured(
        sides={
            "wrong": {
                "head moved": wrong_moved,
                "smallest gradient norm of the head": norm,
                "loss after 60 updates": wrong[-1],
            },
            "right": {"head moved": right_moved, "loss after 60 updates": right[-1]},
        },
        conclusion=f"a head added after the optimizer moved {wrong_moved:g} in 60 updates although each gave it a gradient, and the loss ended at {wrong[-1]:.2f}; "
        f"added before it moved {right_moved:.1f} and the loss ended at {right[-1]:.2f}",
        holds={
            "it gets a gradient in every update": norm > 0,
            "it never moves": wrong_moved == 0,
            "in the optimizer it does": right_moved > 0.1,
            "the run with it ends lower": right[-1] < wrong[-1],
        },
        curves={"wrong": wrong, "right": right},
        axes=("update", "loss"),
    )


def _train(*, head_first: bool) -> tuple[list[float], float, float]:
    """Losses, how far the new head moved, and its smallest gradient norm."""
    backbone, windows = regression(updates=60, batch=64)
    head = nn.Linear(1, 1)
    trained = nn.Sequential(backbone, head) if head_first else backbone
    optimizer = torch.optim.SGD(trained.parameters(), lr=0.02)
    start = flat(head.parameters())
    losses, norms = [], []
    for ((x, y),) in windows:
        loss = mse_loss(head(backbone(x)), y)
        optimizer.zero_grad()
        head.zero_grad()
        loss.backward()
        assert head.weight.grad is not None
        norms.append(head.weight.grad.norm().item())
        optimizer.step()
        losses.append(loss.item())
    return losses, float((flat(head.parameters()) - start).norm()), min(norms)
