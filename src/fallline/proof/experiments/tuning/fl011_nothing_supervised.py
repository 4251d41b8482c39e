"""FL011: a batch without a label that counts."""

from __future__ import annotations

import math

import torch
from torch.nn import functional as F

from fallline.proof.experiment import Measured, experiment


@experiment(
    "FL011",
    claim="The mean loss over labels that are all -100 is NaN and teaches nothing; one label that counts is enough for a number.",
)
def nothing_supervised() -> Measured:
    torch.manual_seed(0)
    logits = torch.randn(8, 5)
    none = torch.full((8,), -100)
    one = none.clone()
    one[3] = 2
    empty, some = (F.cross_entropy(logits, labels) for labels in (none, one))
    return Measured(
        sides={"wrong": {"loss": str(float(empty))}, "right": {"loss": float(some)}},
        conclusion=f"with no label the loss is {float(empty)}; with one label it is {float(some):.2f}",
        holds={
            "no label: NaN": math.isnan(float(empty)),
            "one label: a number": math.isfinite(float(some)),
        },
    )
