"""FL113: the same run with max_norm of 0.01, zero and minus one, and with one that fits."""

from __future__ import annotations

import torch

from fallline.proof.experiment import Measured, experiment
from fallline.proof.experiments._training import clipped, cosine, plain, train

FITS, TINY = 5.0, 0.01


@experiment(
    "FL113",
    claim="A max_norm below every norm all but stops SGD; zero removes the gradient and a negative value turns the update around.",
    taught="Clipping every update makes learning very slow, with any optimizer.",
)
def clip_threshold_extreme() -> Measured:
    tiny, right = train(clipped(TINY)), train(clipped(FITS))
    zero, negative = train(clipped(0.0)), train(clipped(-1.0))
    unclipped = train(plain, updates=1)
    adam = train(clipped(TINY), optimizer=torch.optim.Adam)
    adam_right = train(clipped(FITS), optimizer=torch.optim.Adam)
    reversed_ = cosine(negative.gradients[0], unclipped.gradients[0])
    return Measured(
        sides={
            "wrong": {
                "loss after 40 updates, SGD": tiny.losses[-1],
                "loss after 40 updates, Adam": adam.losses[-1],
                "distance moved with max_norm=0": sum(zero.steps),
                "loss after 40 updates with max_norm=-1": negative.losses[-1],
            },
            "right": {
                "loss after 40 updates, SGD": right.losses[-1],
                "loss after 40 updates, Adam": adam_right.losses[-1],
            },
        },
        conclusion=f"with max_norm={TINY:g} SGD goes from {tiny.losses[0]:.2f} to {tiny.losses[-1]:.2f} in 40 updates, with {FITS:g} to {right.losses[-1]:.2f} "
        f"(Adam reaches {adam.losses[-1]:.2f} and {adam_right.losses[-1]:.2f}); zero moves nothing, and -1 ends at {negative.losses[-1]:.1f}",
        holds={
            "every update is clipped": max(tiny.norms) < TINY * 1.001,
            "SGD hardly learns": tiny.losses[-1] > 10 * right.losses[-1],
            "Adam learns all the same": 5 * adam.losses[-1] < adam.losses[0],
            "zero removes the gradient": sum(zero.steps) == 0,
            "a negative value turns the update around": reversed_ < -1 + 1e-6,
            "and the loss rises": negative.losses[-1] > negative.losses[0],
        },
        curves={"wrong": tiny.losses, "right": right.losses, "negative": negative.losses},
        axes=("update", "loss (SGD)"),
    )
