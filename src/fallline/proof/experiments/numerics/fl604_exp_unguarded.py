"""FL604: exp of something without an upper bound."""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn import functional as F

from fallline.proof.experiment import Measured, experiment
from fallline.proof.experiments.numerics._at import value, words

TYPES = {torch.float32: 88.72, torch.bfloat16: 88.5, torch.float16: 11.09}
SCALES = [float(z) for z in range(0, 121, 2)]


@experiment(
    "FL604",
    claim="exp overflows above 88.72 in float32, 88.5 in bfloat16 and 11.09 in float16, and infinity over infinity is NaN; "
    "the forms that stay in log space are finite.",
    taught="exp explodes if logits exceed 100, and the limit in FP16 is about 88.",
)
def exp_unguarded() -> Measured:
    limits = {dtype: _largest_with_finite_exp(dtype) for dtype in TYPES}
    wrong = {
        "softmax, logits 0 and 100": value(lambda z: _by_hand(_logits(z))[1], 100.0),
        "log(1 + exp(100))": value(lambda z: torch.log(1 + torch.exp(z)), 100.0),
        "log(sum(exp)), logits 0 and 100": value(lambda z: _logits(z).exp().sum().log(), 100.0),
    }
    right = {
        "softmax, logits 0 and 100": value(lambda z: torch.softmax(_logits(z), 0)[1], 100.0),
        "log(1 + exp(100))": value(F.softplus, 100.0),
        "log(sum(exp)), logits 0 and 100": value(lambda z: torch.logsumexp(_logits(z), 0), 100.0),
    }
    with torch.autocast("cpu", dtype=torch.bfloat16):
        on_cpu = torch.exp(torch.ones(1, dtype=torch.bfloat16)).dtype
    return Measured(
        sides={
            "wrong": {name: words(number) for name, number in wrong.items()},
            "right": right,
            "largest x with a finite exp": {str(dtype): x for dtype, x in limits.items()},
        },
        conclusion="the largest x with a finite exp is "
        + ", ".join(f"{x:.2f} in {str(dtype)[6:]}" for dtype, x in limits.items())
        + f"; a softmax by hand of logits 0 and 100 is {wrong['softmax, logits 0 and 100']}",
        holds={
            "the limits are as stated": all(abs(limits[t] - TYPES[t]) < 0.01 for t in TYPES),
            "infinity over infinity is NaN": math.isnan(wrong["softmax, logits 0 and 100"]),
            "the other hand-written forms are infinite": wrong["log(1 + exp(100))"]
            == wrong["log(sum(exp)), logits 0 and 100"]
            == math.inf,
            "the stable forms are right": list(right.values()) == [1.0, 100.0, 100.0],
            "CPU autocast leaves exp in the half type": on_cpu == torch.bfloat16,
        },
        curves={
            "wrong": [value(lambda z: -_by_hand(_logits(z))[0].log(), z) for z in SCALES],
            "right": [value(lambda z: -F.log_softmax(_logits(z), 0)[0], z) for z in SCALES],
        },
        axes=("logit of the wrong answer", "loss"),
        positions=SCALES,
    )


def _largest_with_finite_exp(dtype: torch.dtype) -> float:
    x = torch.arange(0, 100, 1 / 128).to(dtype)  # no half type has more values between 8 and 100
    return x[torch.isfinite(x.exp())].max().item()


def _logits(z: Tensor) -> Tensor:
    return torch.stack([torch.zeros(()), z])


def _by_hand(logits: Tensor) -> Tensor:
    return logits.exp() / logits.exp().sum()
