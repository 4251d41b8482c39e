"""FL808: BatchNorm whose last batch of each epoch is one image, and one that drops it."""

from __future__ import annotations

import torch
from torch import nn

from fallline.proof.experiment import Measured, experiment

EPOCHS, CHANNELS = 40, 64


@experiment(
    "FL808",
    claim="A last batch of one sample stops BatchNorm1d with an error, and moves the running statistics of BatchNorm2d far from the data at the end of every epoch.",
)
def batchnorm_batch_of_one() -> Measured:
    error = ""
    try:
        nn.BatchNorm1d(4)(torch.randn(1, 4))
    except ValueError as raised:
        error = str(raised).split(",")[0]
    wrong, right = _off(dropped=False), _off(dropped=True)
    return Measured(
        sides={
            "wrong": {"running mean off by": wrong, "BatchNorm1d": error},
            "right": {"running mean off by": right},
        },
        conclusion=f"at the end of an epoch the running mean is off by {wrong:.3f} with a last batch of one image and by {right:.3f} without it; BatchNorm1d says {error!r}",
        holds={
            "BatchNorm1d stops the run": "more than 1 value" in error,
            "the statistics are at least half as far off again": wrong > 1.5 * right,
        },
    )


def _off(*, dropped: bool) -> float:
    """How far the running mean is from the true one, 0, after each epoch; on average."""
    torch.manual_seed(0)
    norm = nn.BatchNorm2d(CHANNELS)
    found = []
    for _ in range(EPOCHS):
        for size in (32,) * 8 if dropped else (32,) * 8 + (1,):
            # pixels of one image are alike: each has a brightness of its own
            norm(torch.randn(size, CHANNELS, 1, 1) + 0.1 * torch.randn(size, CHANNELS, 4, 4))
        assert norm.running_mean is not None
        found.append(norm.running_mean.pow(2).mean().sqrt().item())
    return sum(found) / len(found)
