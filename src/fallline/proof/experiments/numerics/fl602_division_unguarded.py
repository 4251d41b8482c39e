"""FL602: a division by something that can be zero, such as the size of a mask."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from fallline.proof.experiment import Measured, experiment
from fallline.proof.experiments._tasks import regression
from fallline.proof.experiments.numerics._at import nonfinite, slope, value, words

UPDATES, EMPTY = 30, 15  # the mask of update 15 selects nothing


@experiment(
    "FL602",
    claim="One empty mask makes a masked mean NaN and, one step later, every weight; an epsilon next to a value of "
    "either sign only moves the pole.",
    taught="masked_loss.sum() / mask.sum() is right, and 1 / (pred + 1e-8) is stable.",
)
def division_unguarded() -> Measured:
    wrong = _train(lambda total, count: total / count)
    right = _train(lambda total, count: total / count.clamp(min=1))
    pole = value(lambda pred: 1 / (pred + 1e-8), -1e-8)
    hidden = slope(lambda n: torch.where(n > 0, 1 / n, 0.0), 0.0)
    chosen = slope(lambda n: 1 / torch.where(n > 0, n, 1.0), 0.0)
    return Measured(
        sides={
            "wrong": {
                "loss of the empty mask": words(wrong.losses[EMPTY]),
                "non-finite weights at the end": wrong.broken,
                "1 / (pred + 1e-8) at -1e-8": words(pole),
                "slope at 0 under a condition": words(hidden),
            },
            "right": {
                "loss of the empty mask": right.losses[EMPTY],
                "non-finite weights at the end": right.broken,
                "slope at 0 under a condition": chosen,
            },
        },
        conclusion=f"one empty mask in {UPDATES} updates makes {wrong.broken} of {wrong.weights} weights NaN; with "
        f"mask.sum().clamp(min=1) its loss is {right.losses[EMPTY]:.0f} and {right.broken} are",
        holds={
            "0 / 0 is NaN": math.isnan(wrong.losses[EMPTY]),
            "every weight is NaN afterwards": wrong.broken == wrong.weights,
            "clamp(min=1) gives the empty mask a loss of 0": right.losses[EMPTY] == 0,
            "and the run goes on": right.broken == 0 and right.losses[-1] < right.losses[0],
            "an epsilon only moves the pole": pole == math.inf,
            "where() around the division keeps a NaN slope": math.isnan(hidden),
            "choosing the denominator first does not": chosen == 0,
        },
        curves={"wrong": wrong.losses, "right": right.losses},
        axes=("update", "masked loss"),
    )


class _train:
    """A masked squared error; the mask keeps half of the samples, in one update none."""

    def __init__(self, mean: Callable[[Tensor, Tensor], Tensor]) -> None:
        model, windows = regression(updates=UPDATES)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        self.losses: list[float] = []
        for number, ((x, y),) in enumerate(windows):
            mask = torch.zeros_like(y) if number == EMPTY else (torch.rand_like(y) < 0.5).float()
            loss = mean(((model(x) - y) ** 2 * mask).sum(), mask.sum())
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            self.losses.append(loss.item())
        self.broken = nonfinite(model.parameters())
        self.weights = sum(p.numel() for p in model.parameters())
