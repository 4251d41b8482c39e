"""FL106: the same run with and without zero_grad, and a gradient that is always 1."""

from __future__ import annotations

import torch

from fallline.proof.experiment import Measured, experiment
from fallline.proof.experiments._training import cosine, plain, train, uncleared


@experiment(
    "FL106",
    claim="Without zero_grad a constant gradient counts 1, 2, 3, 4 times at updates 1 to 4, and old directions never go away.",
)
def zero_grad_missing() -> Measured:
    wrong, right = train(uncleared), train(plain)
    seen = _constant_gradient(4)
    # At the start of the wrong run's 10th update: the newest gradient alone against the sum that stepped.
    newest = wrong.gradients[9] - wrong.gradients[8]
    stale = cosine(wrong.gradients[9], newest)
    return Measured(
        sides={
            "wrong": {
                "a gradient of 1 at update 4": seen[3],
                "cosine of update 10 to its own batch's gradient": stale,
                "lowest loss in the last 10 updates": min(wrong.losses[-10:]),
            },
            "right": {
                "a gradient of 1 at update 4": 1.0,
                "cosine of update 10 to its own batch's gradient": 1.0,
                "lowest loss in the last 10 updates": min(right.losses[-10:]),
            },
        },
        conclusion=f"without zero_grad a gradient of 1 is {', '.join(f'{g:g}' for g in seen)} at updates 1 to 4; the tenth update of a real run has a "
        f"cosine of {stale:.2f} to the gradient of its own batch",
        holds={
            "a constant gradient counts 1, 2, 3, 4 times": seen == [1.0, 2.0, 3.0, 4.0],
            "old directions stay": stale < 0.9,
            "the run ends worse": min(wrong.losses[-10:]) > 2 * min(right.losses[-10:]),
        },
        curves={"wrong": wrong.losses, "right": right.losses},
        axes=("update", "loss"),
    )


def _constant_gradient(updates: int) -> list[float]:
    weight = torch.zeros(1, requires_grad=True)
    optimizer = torch.optim.SGD([weight], lr=0.1)
    seen = []
    for _ in range(updates):
        weight.sum().backward()
        optimizer.step()
        assert weight.grad is not None
        seen.append(weight.grad.item())
    return seen
