"""FL608: a non-finite loss is replaced and the run goes on."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from fallline.proof.experiment import Measured, experiment
from fallline.proof.experiments._tasks import regression
from fallline.proof.experiments.numerics._at import nonfinite, slope, value, words

UPDATES, BAD = 40, 10  # update 10 has a NaN among its targets


@experiment(
    "FL608",
    claim="nan_to_num makes the curve finite and leaves the gradient NaN: one bad batch breaks every weight, and from then "
    "on the loss shown is 0. Skipping the update keeps the model.",
)
def nan_hidden() -> Measured:
    wrong, right = _train(_hide), _train(_skip)
    replaced = value(lambda x: torch.nan_to_num(1 / x), 0.0)
    through = slope(lambda x: torch.nan_to_num(torch.exp(x) / torch.exp(x)), 100.0)
    return Measured(
        sides={
            "wrong": {
                "non-finite weights at the end": wrong.broken,
                "last loss shown": wrong.shown[-1],
                "an infinite loss becomes": replaced,
                "its gradient through an exp that overflowed": words(through),
            },
            "right": {
                "non-finite weights at the end": right.broken,
                "last loss shown": right.shown[-1],
            },
        },
        conclusion=f"after one bad batch nan_to_num shows a loss of {wrong.shown[-1]:.0f} while {wrong.broken} of {wrong.weights} weights are "
        f"NaN; skipped, the run ends with {right.broken} broken weights",
        holds={
            "the curve shows no NaN": all(map(math.isfinite, wrong.shown)),
            "every weight is broken": wrong.broken == wrong.weights,
            "from then on every loss is replaced": set(wrong.shown[BAD:]) == {0.0},
            "an infinite loss becomes 3.4e38": abs(replaced / 3.4e38 - 1) < 0.01,
            "its gradient stays NaN": math.isnan(through),
            "skipping keeps the model learning": right.broken == 0
            and right.shown[-1] < right.shown[0] / 10,
        },
        curves={"wrong": wrong.shown, "right": right.shown},
        axes=("update", "loss shown"),
    )


def _hide(loss: Tensor) -> Tensor:
    return torch.nan_to_num(loss)


def _skip(loss: Tensor) -> Tensor | None:
    return loss if torch.isfinite(loss) else None


class _train:
    """A squared error; one NaN among the targets makes one loss NaN."""

    def __init__(self, treat: Callable[[Tensor], Tensor | None]) -> None:
        model, windows = regression(updates=UPDATES)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        windows[BAD][0][1][0] = float("nan")
        self.shown: list[float] = []
        for ((x, y),) in windows:
            loss = treat(((model(x) - y) ** 2).mean())
            if loss is None:
                continue
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            self.shown.append(loss.item())
        self.broken = nonfinite(model.parameters())
        self.weights = sum(p.numel() for p in model.parameters())
