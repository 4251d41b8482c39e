"""FL621: a finite loss with a gradient that is not."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from fallline.proof.experiment import Measured, experiment
from fallline.proof.experiments._tasks import regression
from fallline.proof.experiments.numerics._at import nonfinite, slope, value, words

# Each with a value at 0 and no derivative there, next to the form that has one.
OPERATIONS: dict[str, tuple[Callable[[Tensor], Tensor], Callable[[Tensor], Tensor]]] = {
    "sqrt(x)": (torch.sqrt, lambda x: x.clamp_min(1e-12).sqrt()),
    "x ** 0.3": (lambda x: x**0.3, lambda x: x.clamp_min(1e-12) ** 0.3),
    "where(x > 0, log(x), 0)": (
        lambda x: torch.where(x > 0, torch.log(x), 0.0),
        lambda x: torch.where(x > 0, torch.log(torch.where(x > 0, x, 1.0)), 0.0),
    ),
}


@experiment(
    "FL621",
    claim="A square root, a power below one and a log that where() drops have a value at 0 and no finite slope: the loss "
    "looks healthy and the next step breaks the weights.",
    taught="A loss that is not NaN means that the loss function is not at fault.",
)
def gradient_nonfinite() -> Measured:
    values = [value(bare, 0.0) for bare, _ in OPERATIONS.values()]
    bare = {name: slope(pair[0], 0.0) for name, pair in OPERATIONS.items()}
    bounded = {name: slope(pair[1], 0.0) for name, pair in OPERATIONS.items()}
    wrong, wrong_broken = _train(torch.sqrt)
    right, right_broken = _train(lambda x: x.clamp_min(1e-12).sqrt())
    return Measured(
        sides={
            "wrong": {f"slope of {name} at 0": words(number) for name, number in bare.items()}
            | {"non-finite weights after the exact hit": wrong_broken},
            "right": {f"slope of {name} at 0": words(number) for name, number in bounded.items()}
            | {"non-finite weights after the exact hit": right_broken},
        },
        conclusion=f"at 0 all {len(values)} operations have a finite value and a slope of "
        f"{', '.join(str(number) for number in bare.values())}; one exact hit of a square root broke {wrong_broken} weights behind a loss of "
        f"{wrong[HIT]:.1f}",
        holds={
            "all values are finite": all(map(math.isfinite, values)),
            "no slope is": not any(map(math.isfinite, bare.values())),
            "bounded inputs give finite slopes": all(map(math.isfinite, bounded.values())),
            "the loss of the broken step is finite": math.isfinite(wrong[HIT]),
            "the next one is not": not math.isfinite(wrong[HIT + 1]),
            "with the bound the run goes on": right_broken == 0 and right[-1] < right[0],
        },
        curves={"wrong": wrong, "right": right},
        axes=("update", "loss"),
    )


UPDATES, HIT = 20, 8  # one prediction of update 8 is exact


def _train(root: Callable[[Tensor], Tensor]) -> tuple[list[float], int]:
    """The mean distance between prediction and target, update by update, and the weights lost in the end."""
    model, windows = regression(updates=UPDATES)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    losses = []
    for number, ((x, y),) in enumerate(windows):
        prediction = model(x)
        if number == HIT:
            y[0] = prediction[0].detach()
        loss = root((prediction - y) ** 2).mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses, nonfinite(model.parameters())
