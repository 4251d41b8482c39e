"""FL212: unscale_ after the first of four micro-batches, and at the end of the window."""

from __future__ import annotations

import torch

from fallline.proof.experiment import Measured, experiment
from fallline.proof.experiments._measures import error_of
from fallline.proof.experiments._training import Trainee, Window, cosine, train
from fallline.proof.experiments.precision._scaled import scaled

K = 4


@experiment(
    "FL212",
    claim="Micro-batches added after unscale_ are 65536 times larger than those before it, which no longer count; a second unscale_ in the window raises.",
)
def unscale_partial() -> Measured:
    wrong, right = train(_unscaled_early, updates=1, k=K), train(scaled(), updates=1, k=K)
    larger = wrong.norms[0] / right.norms[0]
    weights = _weights()
    again: list[str] = []

    def twice(t: Trainee, window: Window) -> None:
        for x, y in window[:2]:
            t.scaler.scale(t.loss(x, y) / K).backward()
            again.append(error_of(lambda: t.scaler.unscale_(t.optimizer)))

    train(twice, updates=1, k=K)
    return Measured(
        sides={
            "wrong": {
                "norm that steps": wrong.norms[0],
                "weight of the first micro-batch": weights[0],
                "weight of the last micro-batch": weights[-1],
                "cosine to the right gradient": cosine(wrong.gradients[0], right.gradients[0]),
            },
            "right": {
                "norm that steps": right.norms[0],
                "weight of the first micro-batch": 1 / K,
                "weight of the last micro-batch": 1 / K,
            },
        },
        conclusion=f"unscaled after the first of {K} micro-batches, the others weigh {weights[-1] / weights[0]:,.0f} times as much as it, and the norm that steps is {larger:,.0f} times too large; "
        f"a second unscale_ in the window raises {again[1]}",
        holds={
            "later micro-batches weigh 65536 times as much": weights[1:] == [65536 / K] * (K - 1)
            and weights[0] == 1 / K,
            "the step is far too long": larger > 10_000,
            "a second unscale_ raises": again == ["none", "RuntimeError"],
        },
    )


def _unscaled_early(t: Trainee, window: Window) -> None:
    for i, (x, y) in enumerate(window):
        t.scaler.scale(t.loss(x, y) / K).backward()
        if i == 0:
            t.scaler.unscale_(t.optimizer)
    t.scaler.step(t.optimizer)
    t.scaler.update()


def _weights() -> list[float]:
    """One weight for each micro-batch, whose own gradient is 1 / k: what of it the step is given."""
    weight = torch.zeros(K, requires_grad=True)
    optimizer = torch.optim.SGD([weight], lr=1.0)
    scaler = torch.amp.GradScaler("cpu")
    for i in range(K):
        scaler.scale(weight[i] / K).backward()
        if i == 0:
            scaler.unscale_(optimizer)
    scaler.step(optimizer)
    return [-float(w) for w in weight.detach()]
