"""Large gradients: what they do to SGD, to Adam, and what clipping and the learning rate do about them."""

from __future__ import annotations

from collections.abc import Callable
from itertools import count

import torch
from torch import nn
from torch.nn.utils import clip_grad_norm_

from fallline.proof.experiment import Measured, experiment
from fallline.proof.experiments._training import Trainee, Window, plain, train

AT = 20  # the update whose gradient is multiplied
SGD, Adam = torch.optim.SGD, torch.optim.Adam


@experiment(
    "spikes-sgd-against-adam",
    claim="A gradient a million times too large moves SGD a million times too far; Adam a few times, and then Adam hardly moves for long.",
    taught="One spike of large gradients makes a large update and breaks training.",
)
def spikes_sgd_against_adam() -> Measured:
    sgd = train(_spiked(1e6), updates=AT + 1, lr=0.01)
    adam = train(_spiked(1e6), updates=AT + 60, optimizer=Adam, lr=0.01)
    calm = train(plain, updates=AT + 60, optimizer=Adam, lr=0.01)
    clipped = train(_spiked(1e6, max_norm=1.0), updates=AT + 1, lr=0.01)
    sgd_jump = sgd.steps[AT] / sgd.steps[AT - 1]
    adam_jump, stall = adam.steps[AT] / calm.steps[AT], calm.steps[AT + 50] / adam.steps[AT + 50]
    return Measured(
        sides={
            "SGD": {"step at the spike / step before": sgd_jump},
            "SGD, clipped at 1": {"step at the spike / lr": clipped.steps[AT] / 0.01},
            "Adam": {
                "step at the spike / step without it": adam_jump,
                "50 updates later: step without the spike / step": stall,
            },
        },
        conclusion=f"SGD's step is {sgd_jump:.0e} times as long, Adam's {adam_jump:.1f} times; 50 updates later Adam's is {stall:.0f} times too short",
        holds={
            "SGD takes the whole spike": sgd_jump > 1e5,
            "Adam's step stays within 10 times": adam_jump < 10,
            "and stalls afterwards": stall > 10,
            "clipping bounds SGD's": abs(clipped.steps[AT] / 0.01 - 1) < 1e-2,
        },
        curves={"Adam, spike at 20": adam.steps, "Adam, no spike": calm.steps},
        axes=("update", "length of the update"),
    )


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
    logs = {
        name: torch.tensor(s, dtype=torch.float64).log10().tolist() for name, s in steps.items()
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
        curves=logs,
        axes=("log10 of the spike", "log10 of the step"),
        positions=[1, 3, 6, 9],
    )


@experiment(
    "over-clipping-by-optimizer",
    claim="Clipping every step makes SGD crawl; Adam divides the length out again and learns as before.",
    taught="Clipping in every iteration makes learning very slow.",
)
def over_clipping_by_optimizer() -> Measured:
    ends: dict[str, float] = {}
    curves = {}
    for name, kind, lr in (("SGD", SGD, 0.05), ("Adam", Adam, 0.02)):
        for clip, update in (("", plain), (", clipped at 0.01", _clipping(0.01))):
            run = train(update, updates=80, optimizer=kind, lr=lr)
            ends[name + clip], curves[name + clip] = run.losses[-1], run.losses
    return Measured(
        sides={name: {"loss after 80 updates": loss} for name, loss in ends.items()},
        conclusion=(
            f"with max_norm 0.01 SGD ends at {ends['SGD, clipped at 0.01']:.2f} instead of {ends['SGD']:.2f}, "
            f"Adam at {ends['Adam, clipped at 0.01']:.2f} instead of {ends['Adam']:.2f}"
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
        curves={n: [min(x, 10.0) for x in losses] for n, losses in runs.items()},
        axes=("step", "loss (cut at 10)"),
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
