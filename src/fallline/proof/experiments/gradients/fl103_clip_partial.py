"""FL103: clip the growing sum after each of k micro-batches, or the whole sum once."""

from __future__ import annotations

from torch.nn.utils import clip_grad_norm_

from fallline.proof.experiment import Measured, experiment
from fallline.proof.experiments._training import (
    Trainee,
    Update,
    Window,
    clipped,
    cosine,
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
    turned = cosine(wrong.gradients[0], right.gradients[0])
    away = off(wrong.gradients[0], right.gradients[0])
    idle = off(
        train(_clipped_each(NEVER_BINDS), k=K).parameters,
        train(clipped(NEVER_BINDS), k=K).parameters,
    )
    return Measured(
        sides={
            "wrong": {
                "first update's cosine to the one clipped once": turned,
                "first update off by, percent": 100 * away,
                "run off by where the clip never binds": idle,
                "loss after 40 updates": wrong.losses[-1],
            },
            "right": {
                "first update's cosine to the one clipped once": 1.0,
                "loss after 40 updates": right.losses[-1],
            },
        },
        conclusion=f"clipped on each of {K} micro-batches, the first update has a cosine of {turned:.2f} to the one clipped once and is {away:.0%} off; "
        f"with a threshold that never binds the whole run is {idle:.0%} off",
        holds={
            "a clip that binds turns the update": turned < 0.95,
            "a clip that never binds changes nothing": idle < 1e-6,
        },
        curves={"wrong": wrong.losses, "right": right.losses},
        axes=("update", "loss"),
    )


def _clipped_each(max_norm: float) -> Update:
    def update(t: Trainee, window: Window) -> None:
        for x, y in window:
            (t.loss(x, y) / K).backward()
            clip_grad_norm_(t.model.parameters(), max_norm)
        t.optimizer.step()
        t.optimizer.zero_grad()

    return update
