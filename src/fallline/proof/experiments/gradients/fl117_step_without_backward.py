"""FL117: a second step with no backward before it: on old gradients, and after both kinds of zero_grad."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch

from fallline.proof.experiment import Measured, experiment
from fallline.proof.experiments._training import Trainee, Window, plain, train

OPTIMIZERS: dict[str, Callable[..., torch.optim.Optimizer]] = {
    "SGD": torch.optim.SGD,
    "SGD with momentum": partial(torch.optim.SGD, momentum=0.9),
    "SGD with weight decay": partial(torch.optim.SGD, weight_decay=0.1),
    "Adam": torch.optim.Adam,
}


@experiment(
    "FL117",
    claim="A second step repeats the old gradients and doubles the update; after zero_grad() it does nothing, and after "
    "zero_grad(set_to_none=False) momentum, Adam and weight decay still move the parameters.",
)
def step_without_backward() -> Measured:
    twice = train(_steps_twice, updates=1).steps[0] / train(plain, updates=1).steps[0]
    wrong, right = train(_steps_twice, lr=0.15), train(plain, lr=0.15)
    after_none = {name: _extra_step(o, to_none=True) for name, o in OPTIMIZERS.items()}
    after_zeros = {name: _extra_step(o, to_none=False) for name, o in OPTIMIZERS.items()}
    movers = [name for name, moved in after_zeros.items() if moved > 0]
    return Measured(
        sides={
            "wrong": {
                "length of the first update": wrong.steps[0],
                **{f"moved after zeros, {name}": v for name, v in after_zeros.items()},
                "moved after zero_grad(), most": max(after_none.values()),
            },
            "right": {"length of the first update": right.steps[0]},
        },
        conclusion=f"a second SGD step on the same gradients makes the update {twice:.2f} times as long; after zero_grad() a step moves nothing with any of "
        f"{len(OPTIMIZERS)} optimizers, after zero_grad(set_to_none=False) it moves the parameters with {', '.join(movers)}",
        holds={
            "a second step doubles the update": abs(twice - 2) < 1e-4,
            "after zero_grad() nothing moves": max(after_none.values()) == 0,
            "after zeros plain SGD rests": after_zeros["SGD"] == 0,
            "after zeros the others move": len(movers) == len(OPTIMIZERS) - 1,
        },
        curves={"wrong": wrong.losses, "right": right.losses},
        axes=("update", "loss (SGD)"),
    )


def _steps_twice(t: Trainee, window: Window) -> None:
    for x, y in window:
        t.loss(x, y).backward()
    t.optimizer.step()
    t.optimizer.step()
    t.optimizer.zero_grad()


def _extra_step(optimizer: Callable[..., torch.optim.Optimizer], *, to_none: bool) -> float:
    """How far one more step moves the parameters after three ordinary updates and a zero_grad."""

    def update(t: Trainee, window: Window) -> None:
        if t.number < 3:
            plain(t, window)
        else:
            t.loss(*window[0]).backward()  # so that there is something to clear
            t.optimizer.zero_grad(set_to_none=to_none)
            t.optimizer.step()

    return train(update, updates=4, optimizer=optimizer).steps[-1]
