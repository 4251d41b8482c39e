"""FL103: clip the growing sum after each of k micro-batches, or the whole sum once."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.amp import GradScaler
from torch.nn.utils import clip_grad_norm_

from fallline.proof.experiment import Measured, experiment
from fallline.proof.experiments._tasks import regression
from fallline.proof.experiments._training import (
    Trainee,
    Update,
    Window,
    clipped,
    cosine,
    gradient,
    off,
    train,
)

K = 4
BINDS, NEVER_BINDS = 0.5, 1e6


@experiment(
    "FL103",
    claim="Where the clip binds, clipping every micro-batch turns the update away from the one clipped once; where it never binds both are the same.",
    taught="Clipping on each micro-batch distorts the gradient, always.",
)
def clip_partial() -> Measured:
    wrong, right = train(_clipped_each(BINDS), k=K), train(clipped(BINDS), k=K)
    pairs = _gradients()
    turned = sum(cosine(each, once) for each, once in pairs) / len(pairs)
    away = [off(each, once) for each, once in pairs]
    average = sum(away) / len(away)
    idle = off(
        train(_clipped_each(NEVER_BINDS), k=K).parameters,
        train(clipped(NEVER_BINDS), k=K).parameters,
    )
    return Measured(
        sides={
            "wrong": {
                "update's cosine to the one clipped once": turned,
                "update off by, percent": 100 * average,
                "run off by where the clip never binds": idle,
                "loss after 40 updates": wrong.losses[-1],
            },
            "right": {
                "update's cosine to the one clipped once": 1.0,
                "loss after 40 updates": right.losses[-1],
            },
        },
        conclusion=f"clipped on each of {K} micro-batches, an update has a cosine of {turned:.2f} to the one clipped once and is {average:.0%} off, on average of {len(pairs)} from the same start; "
        f"with a threshold that never binds the whole run is {idle:.0%} off",
        holds={
            "a clip that binds turns every update": min(away) > 0.02,
            "by more than a tenth of it on average": average > 0.1,
            "a clip that never binds changes nothing": idle < 1e-6,
        },
        curves={"wrong": wrong.losses, "right": right.losses},
        axes=("update", "loss"),
    )


def _gradients() -> list[tuple[Tensor, Tensor]]:
    """Of every window, what a step from the same parameters is given: clipped on each micro-batch, and clipped once."""
    model, windows = regression(updates=40, k=K)
    trainee = Trainee(model, torch.optim.SGD(model.parameters(), lr=0.0), GradScaler("cpu"))
    given: list[Tensor] = []
    trainee.optimizer.register_step_pre_hook(lambda *_: given.append(gradient(model)))
    for window in windows:
        for update in (_clipped_each(BINDS), clipped(BINDS)):
            update(trainee, window)
    return list(zip(given[::2], given[1::2], strict=True))


def _clipped_each(max_norm: float) -> Update:
    def update(t: Trainee, window: Window) -> None:
        for x, y in window:
            (t.loss(x, y) / K).backward()
            clip_grad_norm_(t.model.parameters(), max_norm)
        t.optimizer.step()
        t.optimizer.zero_grad()

    return update
