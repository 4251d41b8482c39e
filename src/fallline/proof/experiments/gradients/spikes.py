"""Large gradients: what they do to SGD, to Adam, and what clipping and the learning rate do about them."""

from __future__ import annotations

from collections.abc import Callable
from itertools import count
from math import isfinite

import torch
from torch import nn
from torch.nn.utils import clip_grad_norm_

from fallline.proof.experiment import Measured, experiment
from fallline.proof.experiments._training import Trainee, Window, plain, train

AT = 20  # the update whose gradient is multiplied
SEEDS = 5  # runs that are averaged
SGD, Adam = torch.optim.SGD, torch.optim.Adam


@experiment(
    "spikes-sgd-against-adam",
    claim="A gradient a million times too large moves SGD a million times too far and Adam at most a few times; but then Adam's steps are far too short for long.",
    taught="One spike of large gradients makes a large update and breaks training.",
)
def spikes_sgd_against_adam() -> Measured:
    runs = {
        "SGD": _against_calm(SGD),
        "Adam": _against_calm(Adam),
        "SGD, clipped at 1": _against_calm(SGD, max_norm=1.0),
        "Adam, clipped at 1": _against_calm(Adam, max_norm=1.0),
    }
    at = {name: steps[AT] for name, steps in runs.items()}
    later = {name: steps[AT + 50] for name, steps in runs.items()}
    return Measured(
        sides={
            name: {
                "step at the spike, in calm ones": at[name],
                "step 50 updates later, in calm ones": later[name]
                if isfinite(later[name])
                else "not finite",
            }
            for name in runs
        },
        conclusion=f"SGD's step is {at['SGD']:.0e} times as long, Adam's {at['Adam']:.1f} times; 50 updates later Adam's is {1 / later['Adam']:.0f} times too short; clipped at 1, both steps stay within {max(at['SGD, clipped at 1'], at['Adam, clipped at 1']):.1f} times",
        holds={
            "SGD takes the whole spike": at["SGD"] > 1e5,
            "Adam's step stays within 5 times": at["Adam"] < 5,
            "and is far too short afterwards": later["Adam"] < 0.1,
            "clipping prevents both": at["SGD, clipped at 1"] < 10
            and later["Adam, clipped at 1"] > 0.5,
        },
        curves={name: steps for name, steps in runs.items() if name.startswith("Adam")},
        axes=("update", "length of the update, in calm ones"),
    )


def _against_calm(kind: type[torch.optim.Optimizer], max_norm: float | None = None) -> list[float]:
    """The length of each update of a run with a spike of a million, in those of the same run without."""
    spiked, calm = (
        train(_spiked(factor, max_norm), updates=AT + 60, optimizer=kind, lr=0.01).steps
        for factor in (1e6, 1.0)
    )
    return [a / b for a, b in zip(spiked, calm, strict=True)]


@experiment(
    "adam-bounds-spikes",
    claim="Adam's step at a spike is bounded whatever the spike's size; SGD's grows with it.",
    taught="Switching the optimizer does not help against exploding gradients.",
)
def adam_bounds_spikes() -> Measured:
    factors = (1e1, 1e3, 1e6, 1e9)
    steps = {
        name: [
            train(_spiked(f), updates=AT + 1, optimizer=kind, lr=0.01).steps[AT] for f in factors
        ]
        for name, kind in (("SGD", SGD), ("Adam", Adam))
    }
    return Measured(
        sides={
            name: {f"step at a spike of {f:g}": s for f, s in zip(factors, found, strict=True)}
            for name, found in steps.items()
        },
        conclusion=f"spikes of 1e3 and 1e9: Adam's step is {steps['Adam'][1]:.3f} and {steps['Adam'][3]:.3f}, SGD's {steps['SGD'][1]:.0f} and {steps['SGD'][3]:.0e}",
        holds={
            "Adam's step does not depend on the spike": abs(steps["Adam"][3] / steps["Adam"][1] - 1)
            < 0.05,
            "SGD's does": steps["SGD"][3] / steps["SGD"][1] > 1e5,
        },
        curves=steps,
        axes=("size of the spike", "length of the step"),
        positions=factors,
    )


@experiment(
    "over-clipping-by-optimizer",
    claim="Clipping every step makes SGD crawl; Adam divides the length out again and learns as before.",
    taught="Clipping in every iteration makes learning very slow, with any optimizer.",
)
def over_clipping_by_optimizer() -> Measured:
    ends: dict[str, float] = {}
    curves = {}
    for name, kind, lr in (("SGD", SGD, 0.05), ("Adam", Adam, 0.02)):
        for clip, update in (("", plain), (", clipped at 0.01", _clipping(0.01))):
            # one run of Adam ends up to twice as high or as low as another: an average can be compared
            runs = [
                train(update, updates=80, optimizer=kind, lr=lr, seed=seed).losses
                for seed in range(SEEDS)
            ]
            curves[name + clip] = [sum(losses) / SEEDS for losses in zip(*runs, strict=True)]
            ends[name + clip] = curves[name + clip][-1]
    return Measured(
        sides={name: {"loss after 80 updates": loss} for name, loss in ends.items()},
        conclusion=(
            f"with max_norm 0.01 SGD ends at {ends['SGD, clipped at 0.01']:.2f} instead of {ends['SGD']:.2f}, "
            f"Adam at {ends['Adam, clipped at 0.01']:.2f} instead of {ends['Adam']:.2f}, on average of {SEEDS} runs"
        ),
        holds={
            "SGD crawls": ends["SGD, clipped at 0.01"] > 5 * ends["SGD"],
            "Adam does not": ends["Adam, clipped at 0.01"] < 1.5 * ends["Adam"],
        },
        curves=curves,
        axes=("update", "loss"),
    )


@experiment(
    "learning-rate-before-clipping",
    claim="Where the learning rate is too high, clipping stops the divergence but not the bouncing; a lower rate converges.",
    taught="Clipping is the fix; lowering the learning rate treats a symptom.",
)
def learning_rate_before_clipping() -> Measured:
    runs = {
        "rate 0.22": _quadratic(lr=0.22),
        "rate 0.22, clipped at 1": _quadratic(lr=0.22, max_norm=1.0),
        "rate 0.1": _quadratic(lr=0.1),
    }
    ends = {name: losses[-1] for name, losses in runs.items()}
    return Measured(
        sides={name: {"loss after 100 steps": end} for name, end in ends.items()},
        conclusion=f"too high a rate ends at {ends['rate 0.22']:.0e}; clipped {ends['rate 0.22, clipped at 1']:.2f}; half of the rate {ends['rate 0.1']:.0e}",
        holds={
            "the high rate diverges": ends["rate 0.22"] > 1e6,
            "clipping bounces": 1e-3 < ends["rate 0.22, clipped at 1"] < 10,
            "the lower rate converges": ends["rate 0.1"] < 1e-3,
        },
        curves=runs,
        axes=("step", "loss"),
    )


def _quadratic(*, lr: float, max_norm: float | None = None) -> list[float]:
    """100 steps of SGD on 10 x² / 2 + y² / 2: rates over 0.2 are unstable."""
    point = nn.Parameter(torch.tensor([0.37, 1.0]))
    optimizer = SGD([point], lr=lr)
    losses = []
    for _ in range(100):
        optimizer.zero_grad()
        loss = (torch.tensor([10.0, 1.0]) * point**2).sum() / 2
        loss.backward()
        if max_norm is not None:
            clip_grad_norm_([point], max_norm)
        optimizer.step()
        losses.append(loss.item())
    return losses


def _spiked(factor: float, max_norm: float | None = None) -> Callable[[Trainee, Window], None]:
    """The update as usual; at update `AT` the gradient comes out `factor` times as large."""
    numbers = count()

    def update(t: Trainee, window: Window) -> None:
        ((x, y),) = window
        t.loss(x, y).backward()
        if next(numbers) == AT:
            for p in t.model.parameters():
                p.grad = p.grad * factor if p.grad is not None else None
        if max_norm is not None:
            clip_grad_norm_(t.model.parameters(), max_norm)
        t.optimizer.step()
        t.optimizer.zero_grad()

    return update


def _clipping(max_norm: float) -> Callable[[Trainee, Window], None]:
    def update(t: Trainee, window: Window) -> None:
        ((x, y),) = window
        t.loss(x, y).backward()
        clip_grad_norm_(t.model.parameters(), max_norm)
        t.optimizer.step()
        t.optimizer.zero_grad()

    return update
