"""Gradient norms as a diagnosis: what they say, and what they do not."""

from __future__ import annotations

import warnings
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

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


def _adam(*, loss_times: float = 1.0, eps: float = 1e-8, updates: int = UPDATES) -> _Run:
    """Adam on the same task, the loss multiplied by a constant."""
    model, windows = regression(updates=updates)
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
    claim="Adam's steps shrink as gradient elements come down to its eps of 1e-8, and it stalls below; a smaller eps brings the run back.",
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
    shares = {name: run.moves[0] / runs["loss"].moves[0] for name, run in runs.items()}
    return Measured(
        sides={
            name: {
                "loss after 60 updates": ends[name],
                "median gradient norm": norms[name],
                "first step, of a full one": shares[name],
            }
            for name in runs
        },
        conclusion=(
            f"the loss ends at {ends['loss']:.2f}, with norms of {norms['loss times 1e-7']:.0e} at {ends['loss times 1e-7']:.2f}, "
            f"with norms of {norms['loss times 1e-9']:.0e} at {ends['loss times 1e-9']:.2f}; eps=1e-20 gives {ends['loss times 1e-9, eps 1e-20']:.2f}; "
            f"the first steps are {shares['loss times 1e-7']:.2f} and {shares['loss times 1e-9']:.2f} of a full one"
        ),
        holds={
            "norms around 1e-7 shorten the first step": 0.2 < shares["loss times 1e-7"] < 0.8,
            "and the run is still fine": ends["loss times 1e-7"] < 1.5 * ends["loss"],
            "norms around 1e-9 leave less than a tenth of it": shares["loss times 1e-9"] < 0.1,
            "and stall Adam": ends["loss times 1e-9"] > 5 * ends["loss"],
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
    claim="A fixed max_norm clips every step or none, as the loss is scaled; the 90th percentile of the last 50 logged norms clips about a tenth of the steps that follow.",
    taught="max_norm=1.0 is a good default; 2 to 3 for norms of 0.5 to 2; 5 where in doubt.",
)
def threshold_from_quantiles() -> Measured:
    shares: dict[str, dict[str, float]] = {}
    for name, loss_times in (("loss", 1.0), ("loss times 10,000", 1e4), ("loss / 100", 0.01)):
        norms = torch.tensor(_adam(loss_times=loss_times, updates=200).norms)
        later = norms[50:]
        limits = norms.unfold(0, 50, 1)[:-1].quantile(0.9, dim=1)  # each from the 50 before
        shares[name] = {
            "steps clipped by max_norm=1, percent": 100 * float((later > 1).float().mean()),
            "steps clipped by the 90th percentile, percent": 100
            * float((later > limits).float().mean()),
        }
    fixed = [s["steps clipped by max_norm=1, percent"] for s in shares.values()]
    chosen = [s["steps clipped by the 90th percentile, percent"] for s in shares.values()]
    return Measured(
        sides=shares,
        conclusion=f"max_norm=1 clips {min(fixed):.0f}% to {max(fixed):.0f}% of the steps of the same run at three loss scales, the 90th percentile of the last 50 norms {max(chosen):.0f}% at each",
        holds={
            "a fixed threshold is arbitrary": max(fixed) == 100 and min(fixed) < 10,
            "a quantile of what was logged before is not": all(3 <= s <= 20 for s in chosen),
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
    claim="Four different micro-batches' gradients are together longer than their sum, on average over a quarter of it each; only four equal ones are a quarter each.",
    taught="Each partial gradient is about a quarter of the final one.",
)
def partial_gradients_are_noisy() -> Measured:
    model, windows = regression(updates=20, k=4, batch=4)

    def shares(window: list[tuple[Tensor, Tensor]]) -> list[float]:
        """Each micro-batch's gradient norm, in that of their sum."""
        parts = []
        for x, y in window:
            model.zero_grad()
            (nn.functional.mse_loss(model(x), y) / 4).backward()
            parts.append(gradient(model))
        whole = torch.stack(parts).sum(0).norm()
        return [float(part.norm() / whole) for part in parts]

    different = [shares(window) for window in windows]
    equal = shares([windows[0][0]] * 4)
    together = [sum(window) for window in different]
    mean = sum(together) / len(together) / 4
    return Measured(
        sides={
            "four different micro-batches": {
                "mean share of the sum's norm": mean,
                "smallest share": min(map(min, different)),
                "largest share": max(map(max, different)),
            },
            "four equal micro-batches": {"mean share of the sum's norm": sum(equal) / 4},
        },
        conclusion=f"in {len(windows)} windows the mean share is {mean:.2f}, single ones are {min(map(min, different)):.2f} to {max(map(max, different)):.2f}; four equal micro-batches have {sum(equal) / 4:.2f} each",
        holds={
            "in every window they are together longer than their sum": min(together) > 1,
            "on average clearly more than a quarter each": mean > 0.27,
            "equal ones are a quarter each": all(abs(share - 0.25) < 1e-6 for share in equal),
        },
    )


def _median(values: list[float]) -> float:
    return float(torch.tensor(values, dtype=torch.float64).median())


def _end(run: _Run) -> float:
    return sum(run.losses[-10:]) / 10
