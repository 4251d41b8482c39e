"""FL221: every forward pass overflows; then none does."""

from __future__ import annotations

import warnings
from math import log2

import torch

from fallline.proof.experiment import Measured, experiment
from fallline.proof.experiments.precision._overflowing import UPDATES, overflowing


@experiment(
    "FL221",
    claim="Where every backward overflows the scale is halved in every update, no update is applied, and nothing says so; no scale can remove an inf from the forward pass.",
)
def scale_collapse() -> Measured:
    with warnings.catch_warnings(record=True) as heard:
        warnings.simplefilter("always")
        wrong = overflowing(torch.float16, every=1)
    right = overflowing(torch.float16, every=0)
    bfloat16 = overflowing(torch.bfloat16, every=1)
    return Measured(
        sides={
            "wrong": {
                "scale at the end": wrong.scales[-1],
                "updates skipped": sum(wrong.skipped),
                "distance moved": wrong.moved,
                "warnings": len(heard),
            },
            "right": {
                "scale at the end": right.scales[-1],
                "updates skipped": sum(right.skipped),
                "distance moved": right.moved,
                "updates skipped, same data in bfloat16": sum(bfloat16.skipped),
            },
        },
        conclusion=f"with an overflow in every forward pass the scale falls from 65,536 to {wrong.scales[-1]:.0e} in {UPDATES} updates, the parameters move by {wrong.moved:g} and there are {len(heard)} warnings; "
        f"the same data in bfloat16 skips {sum(bfloat16.skipped)}",
        holds={
            "every update is skipped": all(wrong.skipped) and wrong.moved == 0,
            "the scale is halved each time": log2(wrong.scales[-1]) == 16 - UPDATES,
            "nothing warns": not heard,
            "without the overflow it trains": right.moved > 0 and right.scales[-1] >= 1024,
            "bfloat16 reaches far enough": not any(bfloat16.skipped),
        },
        curves={
            "wrong": [log2(scale) for scale in wrong.scales],
            "right": [log2(scale) for scale in right.scales],
        },
        axes=("update", "loss scale, power of two"),
    )
