"""Small numbers added against division by zero: where they help, where they move the pole, where they vanish."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fallline.proof.experiment import Measured, experiment

EPS = 1e-8


def _at(
    f: Callable[[Tensor], Tensor], point: float, dtype: torch.dtype = torch.float32
) -> tuple[float, float]:
    """A function's value and slope at a point."""
    x = torch.tensor(point, dtype=dtype, requires_grad=True)
    value = f(x)
    value.backward()
    assert x.grad is not None
    return value.item(), x.grad.item()


def _shown(found: tuple[float, float]) -> dict[str, str]:
    """As words, since inf and NaN are what it is about."""
    return {"value": f"{found[0]:.3g}", "slope": f"{found[1]:.3g}"}


@experiment(
    "log-plus-epsilon",
    claim="log(p + 1e-8) is NaN for p below -1e-8, -inf at p = -1e-8, and its slope at 0 is 1e8; clamp_min(1e-8) is finite for every finite p, with a slope of 0 below 1e-8.",
    taught="log(pred + 1e-8) is stable.",
)
def log_plus_epsilon() -> Measured:
    points = (-0.1, -EPS, 0.0)
    added = [_at(lambda p: (p + EPS).log(), p) for p in points]
    clamped = [_at(lambda p: p.clamp_min(EPS).log(), p) for p in points]
    logits = _at(lambda z: F.logsigmoid(z), -100.0)
    # clamp_min at every number that bfloat16 has: all signs, all sizes of float32.
    every = torch.arange(2**16, dtype=torch.int32).to(torch.int16).view(torch.bfloat16).float()
    every = every[every.isfinite()].requires_grad_()
    all_clamped = every.clamp_min(EPS).log()
    all_clamped.sum().backward()
    assert every.grad is not None
    return Measured(
        sides={
            **{f"log(p + eps), p = {p:g}": _shown(f) for p, f in zip(points, added, strict=True)},
            **{
                f"log(clamp_min(p)), p = {p:g}": _shown(f)
                for p, f in zip(points, clamped, strict=True)
            },
            "logsigmoid(-100)": _shown(logits),
        },
        conclusion=(
            f"log(p + 1e-8) is {added[0][0]:g} at -0.1, {added[1][0]:g} at -1e-8, and has a slope of {added[2][1]:.0e} at 0; "
            f"clamp_min gives {clamped[0][0]:.1f} at all three, logsigmoid(-100) {logits[0]:.0f} with a slope of {logits[1]:.0f}"
        ),
        holds={
            "NaN for negative p": added[0][0] != added[0][0],
            "-inf where p is -eps": added[1][0] == float("-inf"),
            "a slope of 1e8 at zero": abs(added[2][1] / 1e8 - 1) < 1e-3,
            "clamp_min is finite for every finite p": bool(
                all_clamped.isfinite().all() and every.grad.isfinite().all()
            ),
            "and flat below 1e-8": not every.grad[every < EPS].any(),
            "logsigmoid is exact": logits == (-100.0, 1.0),
        },
    )


@experiment(
    "reciprocal-plus-epsilon",
    claim="1 / (p + 1e-8) does not remove the pole, it moves it to -1e-8; at 0 the slope is -1e16.",
    taught="1 / (pred + 1e-8) is stable.",
)
def reciprocal_plus_epsilon() -> Measured:
    zero, pole = _at(lambda p: 1 / (p + EPS), 0.0), _at(lambda p: 1 / (p + EPS), -EPS)
    floors = [_at(lambda p: 1 / p.clamp_min(1e-3), p) for p in (0.0, -EPS)]
    return Measured(
        sides={
            "p = 0": _shown(zero),
            "p = -1e-8": _shown(pole),
            "a floor of 1e-3, p = 0": _shown(floors[0]),
            "a floor of 1e-3, p = -1e-8": _shown(floors[1]),
        },
        conclusion=f"at 0 the value is {zero[0]:.0e} and the slope {zero[1]:.0e}; at -1e-8 they are {pole[0]:g} and {pole[1]:g}; with a floor of 1e-3 they are {floors[0][0]:.0f} and {floors[0][1]:g} at both",
        holds={
            "1e8 at zero": abs(zero[0] / 1e8 - 1) < 1e-3,
            "a slope of -1e16 at zero": abs(zero[1] / -1e16 - 1) < 1e-3,
            "inf at -eps": pole == (float("inf"), float("-inf")),
            "a floor has no pole": all(
                abs(value / 1e3 - 1) < 1e-3 and slope == 0 for value, slope in floors
            ),
        },
    )


@experiment(
    "epsilon-vanishes-in-fp16",
    claim="1e-8 is 0 in float16: it protects nothing there; bfloat16 keeps it.",
    taught="eps=1e-8 is a generic fix.",
)
def epsilon_vanishes_in_fp16() -> Measured:
    def guarded(dtype: torch.dtype) -> dict[str, float]:
        zero = torch.zeros((), dtype=dtype)
        # CUDA autocast leaves sigmoid in the half type.
        p = torch.tensor(-18.0, dtype=dtype).sigmoid()
        return {
            "1e-8 is": torch.tensor(EPS, dtype=dtype).item(),
            "log(0 + 1e-8)": (zero + EPS).log().item(),
            "1 / (0 + 1e-8)": (1 / (zero + EPS)).item(),
            "-log(sigmoid(-18) + 1e-8)": -(p + EPS).log().item(),
        }

    half, brain, full = (guarded(d) for d in (torch.float16, torch.bfloat16, torch.float32))
    stable = F.binary_cross_entropy_with_logits(torch.tensor(-18.0), torch.tensor(1.0)).item()
    smallest = float(torch.tensor(6e-8, dtype=torch.float16))
    return Measured(
        sides={
            name: {quantity: f"{value:.3g}" for quantity, value in found.items()}
            for name, found in (("float16", half), ("bfloat16", brain), ("float32", full))
        },
        conclusion=(
            f"in float16 log(0 + 1e-8) is {half['log(0 + 1e-8)']:g} and 1 / (0 + 1e-8) is {half['1 / (0 + 1e-8)']:g}, in bfloat16 "
            f"{brain['log(0 + 1e-8)']:.1f} and {brain['1 / (0 + 1e-8)']:.0e}; binary_cross_entropy_with_logits gives {stable:.1f} where the log of a float16 sigmoid gives {half['-log(sigmoid(-18) + 1e-8)']:g}"
        ),
        holds={
            "1e-8 is zero in float16, and guards nothing": half["1e-8 is"] == 0
            and half["log(0 + 1e-8)"] == float("-inf")
            and half["1 / (0 + 1e-8)"] == float("inf"),
            "bfloat16 keeps it": brain["1e-8 is"] > 0 and abs(brain["log(0 + 1e-8)"]) < 20,
            "log of a float16 sigmoid is infinite": half["-log(sigmoid(-18) + 1e-8)"]
            == float("inf"),
            "the stable form gives 18": abs(stable - 18) < 1e-3,
            "6e-8 survives in float16": smallest > 0,
        },
    )


@experiment(
    "sqrt-gradient-at-zero",
    claim="sqrt(d²) has a NaN slope at d = 0, and one exact hit makes every weight gradient NaN; clamp(min=0) helps from torch 2.15 on, abs() always.",
    taught="sqrt(clamp(diff**2, min=0)) is stable.",
)
def sqrt_gradient_at_zero() -> Measured:
    slopes = {
        "sqrt(d²)": _at(lambda d: d.pow(2).sqrt(), 0.0),
        "sqrt(clamp(d², min=0))": _at(lambda d: d.pow(2).clamp(min=0).sqrt(), 0.0),
        "sqrt(clamp(d², min=1e-12))": _at(lambda d: d.pow(2).clamp(min=1e-12).sqrt(), 0.0),
        "abs(d)": _at(torch.abs, 0.0),
    }
    root, clamped, bounded, absolute = slopes.values()
    model = nn.Linear(3, 1, bias=False)
    nn.init.zeros_(model.weight)
    target = torch.tensor([0.0, *[1.0] * 7])[:, None]  # one of eight answers is exactly right
    loss = (model(torch.ones(8, 3)) - target).pow(2).sqrt().mean()
    loss.backward()
    assert model.weight.grad is not None
    lost = int(model.weight.grad.isnan().sum())
    # torch 2.15 made clamp's gradient at its bound 0 instead of 1.
    changed = tuple(int(part) for part in torch.__version__.split(".")[:2]) >= (2, 15)
    return Measured(
        sides={name: _shown(found) for name, found in slopes.items()},
        conclusion=f"at 0 the slope of sqrt(d²) is {root[1]:g}, with clamp(min=0) {clamped[1]:g}, of abs {absolute[1]:g}; one exact hit of eight: loss {loss.item():.3f}, {lost} of 3 weight gradients NaN",
        holds={
            "NaN at zero": root[0] == 0 and root[1] != root[1],
            "with clamp(min=0) still NaN before torch 2.15": (clamped[1] != clamped[1]) != changed,
            "abs and a positive bound give 0 there": absolute[1] == bounded[1] == 0,
            "one hit spoils all weights while the loss is finite": lost == 3
            and loss.item() == 0.875,
        },
    )


@experiment(
    "log-of-zero-is-inf",
    claim="log(0) is -inf, not NaN, with an infinite slope; log of a negative number is NaN with a finite slope.",
    taught="log(pred) is NaN if pred <= 0; -log(pred) goes to -inf at 0.",
)
def log_of_zero_is_inf() -> Measured:
    zero, negative = _at(torch.log, 0.0), _at(torch.log, -0.1)
    return Measured(
        sides={"log(0)": _shown(zero), "log(-0.1)": _shown(negative)},
        conclusion=f"log(0) is {zero[0]:g} with a slope of {zero[1]:g}; log(-0.1) is {negative[0]:g} with a slope of {negative[1]:g}; -log(0) is {-zero[0]:g}",
        holds={
            "-inf at zero": zero == (float("-inf"), float("inf")),
            "NaN for a negative number, slope finite": negative[0] != negative[0]
            and abs(negative[1] + 10) < 1e-3,
        },
    )


@experiment(
    "relative-error-loss",
    claim="((p - t) / (|p| + eps))² is 1e16 at p = 0 and has slopes of 1e23; with the target, here 1, in the denominator it is tame.",
    taught="((p - t) / (|p| + eps))² is a stable loss.",
)
def relative_error_loss() -> Measured:
    def by_prediction(p: Tensor) -> Tensor:
        return ((p - 1) / (p.abs() + EPS)) ** 2

    def by_target(p: Tensor) -> Tensor:
        return ((p - 1) / torch.ones(()).clamp_min(1e-3)) ** 2

    zero, near = _at(by_prediction, 0.0), _at(by_prediction, EPS)
    half = _at(by_prediction, 0.0, torch.float16)
    tame = _at(by_target, EPS)
    return Measured(
        sides={
            "|p| below, p = 0": _shown(zero),
            "|p| below, p = 1e-8": _shown(near),
            "|p| below, p = 0 in float16": _shown(half),
            "max(|t|, eps) below, p = 1e-8": _shown(tame),
        },
        conclusion=f"target 1: at p = 0 the loss is {zero[0]:.0e}, at 1e-8 its slope {near[1]:.0e}, in float16 it is {half[0]:g}; with the target below {tame[0]:.0f} and {tame[1]:.0f}",
        holds={
            "1e16 at zero": 0.9e16 < zero[0] < 1.1e16,
            "a slope beyond 1e23": near[1] < -1e23,
            "inf in float16": half[0] == float("inf"),
            "tame with the target below": abs(tame[0] - 1) < 1e-3 and abs(tame[1] + 2) < 1e-3,
        },
    )


@experiment(
    "squares-are-never-negative",
    claim="x² never comes out negative from rounding: the trouble with sqrt(x²) is its slope at 0.",
    taught="sqrt(diff**2) can see negative numbers from rounding.",
)
def squares_are_never_negative() -> Measured:
    patterns = torch.arange(2**16, dtype=torch.int32).to(torch.int16)
    counts = {}
    for name, dtype in (("float16", torch.float16), ("bfloat16", torch.bfloat16)):
        values = patterns.view(dtype)
        values = values[~values.isnan()]
        counts[name] = (len(values), int((values**2 < 0).sum()))
    torch.manual_seed(0)
    random = (
        torch.randint(-(2**31), 2**31, (1_000_000,), dtype=torch.int64)
        .to(torch.int32)
        .view(torch.float32)
    )
    random = random[~random.isnan()]
    counts["float32, a million random ones"] = (len(random), int((random**2 < 0).sum()))
    return Measured(
        sides={
            n: {"numbers tried": tried, "negative squares": bad}
            for n, (tried, bad) in counts.items()
        },
        conclusion=f"of all float16 and bfloat16 numbers and {counts['float32, a million random ones'][0]:,} float32 ones none has a negative square",
        holds={"no negative square": all(bad == 0 for _, bad in counts.values())},
    )
