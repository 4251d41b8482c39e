"""Gradient norms as a diagnosis: what they say, and what they do not."""

from __future__ import annotations

import warnings
from dataclasses import dataclass, field

import torch
from torch import nn

from fallline.proof.experiment import Measured, experiment
from fallline.proof.experiments._tasks import regression
from fallline.proof.experiments._training import flat, gradient

UPDATES = 60


@dataclass
class _Run:
    losses: list[float] = field(default_factory=list)
    norms: list[float] = field(default_factory=list)  # of the gradient
    moves: list[float] = field(default_factory=list)  # of the update
    weights: list[float] = field(default_factory=list)  # norm before each update


def _adam(*, loss_times: float = 1.0, eps: float = 1e-8) -> _Run:
    """Adam on the same task, the loss multiplied by a constant."""
    model, windows = regression(updates=UPDATES)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.02, eps=eps)
    run = _Run()
    for ((x, y),) in windows:
        loss = nn.functional.mse_loss(model(x), y)
        optimizer.zero_grad()
        (loss_times * loss).backward()
        before = flat(model.parameters())
        optimizer.step()
        run.losses.append(loss.item())
        run.norms.append(gradient(model).norm().item())
        run.weights.append(before.norm().item())
        run.moves.append((flat(model.parameters()) - before).norm().item())
    return run


@experiment(
    "no-absolute-norms",
    claim="No absolute gradient norm is too large: a loss times 10,000 gives norms in the thousands and the same Adam run.",
    taught="A norm over 100 is exploding, over 10 suspicious, under 1e-6 vanishing.",
)
def no_absolute_norms() -> Measured:
    plain, large = _adam(), _adam(loss_times=1e4)
    difference = max(abs(a / b - 1) for a, b in zip(large.losses, plain.losses, strict=True))
    return Measured(
        sides={
            "loss": {
                "largest gradient norm": max(plain.norms),
                "loss at the end": plain.losses[-1],
            },
            "loss times 10,000": {
                "largest gradient norm": max(large.norms),
                "loss at the end": large.losses[-1],
            },
        },
        conclusion=f"norms of up to {max(plain.norms):.0f} and {max(large.norms):,.0f} give the same losses, to one part in a thousand",
        holds={
            "the norm is over 100 all the time": min(large.norms) > 100,
            "the losses are the same to one part in a thousand": difference < 1e-3,
        },
        curves={"loss": plain.losses, "loss times 10,000": large.losses},
        axes=("update", "loss"),
    )


@experiment(
    "tiny-norms-and-adam-eps",
    claim="Adam takes full steps while gradient elements are over its eps of 1e-8 and stalls below; a smaller eps brings the run back.",
)
def tiny_norms_and_adam_eps() -> Measured:
    runs = {
        "loss": _adam(),
        "loss times 1e-7": _adam(loss_times=1e-7),
        "loss times 1e-9": _adam(loss_times=1e-9),
        "loss times 1e-9, eps 1e-20": _adam(loss_times=1e-9, eps=1e-20),
    }
    norms = {name: _median(run.norms) for name, run in runs.items()}
    ends = {name: _end(run) for name, run in runs.items()}
    first = runs["loss"].moves[0]
    return Measured(
        sides={
            name: {
                "loss after 60 updates": ends[name],
                "median gradient norm": norms[name],
                "first step, of a full one": run.moves[0] / first,
            }
            for name, run in runs.items()
        },
        conclusion=(
            f"the loss ends at {ends['loss']:.2f}, with norms of {norms['loss times 1e-7']:.0e} at {ends['loss times 1e-7']:.2f}, "
            f"with norms of {norms['loss times 1e-9']:.0e} at {ends['loss times 1e-9']:.2f}; eps=1e-20 gives {ends['loss times 1e-9, eps 1e-20']:.2f}"
        ),
        holds={
            "norms around 1e-7 are fine here": ends["loss times 1e-7"] < 1.5 * ends["loss"],
            "norms around 1e-9 stall Adam": ends["loss times 1e-9"] > 5 * ends["loss"],
            "a smaller eps brings it back": abs(
                ends["loss times 1e-9, eps 1e-20"] / ends["loss"] - 1
            )
            < 0.05,
        },
        curves={name: run.losses for name, run in runs.items()},
        axes=("update", "loss"),
    )


@experiment(
    "update-to-weight-ratio",
    claim="The ratio of update to weight tells how fast weights move; that of gradient to weight tells only how the loss is scaled.",
    taught="A healthy ratio of gradient to parameter is 0.001 to 0.01; over 0.1 updates are too large.",
)
def update_to_weight_ratio() -> Measured:
    plain, large = _adam(), _adam(loss_times=1e4)

    def ratios(run: _Run) -> tuple[float, float]:
        by_gradient = [n / w for n, w in zip(run.norms, run.weights, strict=True)]
        by_update = [m / w for m, w in zip(run.moves, run.weights, strict=True)]
        return _median(by_gradient), _median(by_update)

    (g1, u1), (g2, u2) = ratios(plain), ratios(large)
    return Measured(
        sides={
            "loss": {"gradient / weight": g1, "update / weight": u1},
            "loss times 10,000": {"gradient / weight": g2, "update / weight": u2},
        },
        conclusion=f"gradient / weight is {g1:.2g} and {g2:.2g}, update / weight {u1:.4f} and {u2:.4f}: the same run",
        holds={
            "gradient / weight is 10,000 times larger": 5e3 < g2 / g1 < 2e4,
            "update / weight is the same": abs(u2 / u1 - 1) < 0.01,
        },
    )


@experiment(
    "threshold-from-quantiles",
    claim="A fixed max_norm clips anything between every step and none; the 90th percentile of logged norms clips about a tenth.",
    taught="max_norm=1.0 is a good default; 2 to 3 for norms of 0.5 to 2; 5 where in doubt.",
)
def threshold_from_quantiles() -> Measured:
    shares: dict[str, dict[str, float]] = {}
    for name, loss_times in (("loss", 1.0), ("loss times 10,000", 1e4), ("loss / 100", 0.01)):
        norms = torch.tensor(_adam(loss_times=loss_times).norms)
        limit = float(norms.quantile(0.9))
        shares[name] = {
            "steps clipped by max_norm=1, percent": 100 * float((norms > 1).float().mean()),
            "steps clipped by the 90th percentile, percent": 100
            * float((norms > limit).float().mean()),
        }
    fixed = [s["steps clipped by max_norm=1, percent"] for s in shares.values()]
    chosen = [s["steps clipped by the 90th percentile, percent"] for s in shares.values()]
    return Measured(
        sides=shares,
        conclusion=f"max_norm=1 clips {min(fixed):.0f}% to {max(fixed):.0f}% of the steps of the same run at three loss scales, the 90th percentile {max(chosen):.0f}% at each",
        holds={
            "a fixed threshold is arbitrary": max(fixed) == 100 and min(fixed) < 10,
            "a quantile is not": all(5 <= share <= 15 for share in chosen),
        },
    )


@experiment(
    "std-of-one-element",
    claim="The standard deviation of a one-element gradient is NaN, and torch warns.",
)
def std_of_one_element() -> Measured:
    model = nn.Linear(4, 1)
    model(torch.ones(2, 4)).sum().backward()
    found: dict[str, tuple[bool, int]] = {}
    for name, p in model.named_parameters():
        assert p.grad is not None
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            spread = p.grad.std()
        found[name] = bool(spread.isnan()), len(caught)
    return Measured(
        sides={
            f"{name} ({p.numel()} elements)": {
                "std is NaN": found[name][0],
                "warnings": found[name][1],
            }
            for name, p in model.named_parameters()
        },
        conclusion=f"std of the one-element bias gradient is NaN, with {found['bias'][1]} warning; of the weight's four it is fine",
        holds={
            "NaN for one element, and a warning": found["bias"] == (True, 1),
            "not for four": found["weight"] == (False, 0),
        },
    )


@experiment(
    "partial-gradients-are-noisy",
    claim="Each of four micro-batches' gradients is longer than a quarter of their sum: noise adds in quadrature.",
    taught="Each partial gradient is about a quarter of the final one.",
)
def partial_gradients_are_noisy() -> Measured:
    model, (window,) = regression(updates=1, k=4, batch=4)
    parts = []
    for x, y in window:
        model.zero_grad()
        (nn.functional.mse_loss(model(x), y) / 4).backward()
        parts.append(gradient(model))
    whole = torch.stack(parts).sum(0).norm()
    shares = [float(part.norm() / whole) for part in parts]
    return Measured(
        sides={f"micro-batch {i}": {"share of the sum's norm": s} for i, s in enumerate(shares, 1)},
        conclusion=f"the four shares are {', '.join(f'{s:.2f}' for s in shares)}, together {sum(shares):.2f}",
        holds={"together they are longer than their sum": sum(shares) > 1.05},
    )


def _median(values: list[float]) -> float:
    return float(torch.tensor(values, dtype=torch.float64).median())


def _end(run: _Run) -> float:
    return sum(run.losses[-10:]) / 10
