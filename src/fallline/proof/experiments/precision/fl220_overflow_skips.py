"""FL220: how often a healthy scaler skips, and how often one whose forward pass overflows."""

from __future__ import annotations

from itertools import pairwise
from math import log2

import torch

from fallline.proof.experiment import Measured, experiment
from fallline.proof.experiments.precision._overflowing import UPDATES, overflowing

EVERY = 4
START = 20  # updates in which the scaler finds its first level


@experiment(
    "FL220",
    claim="A healthy scaler skips a few updates at the start and one after each growth; where the forward pass overflows it skips whatever the scale, and bfloat16 does not.",
)
def overflow_skips() -> Measured:
    scaling = {"init_scale": 2.0**24, "growth_interval": 20}
    wrong = overflowing(torch.float16, every=EVERY, **scaling)
    right = overflowing(torch.float16, every=0, **scaling)
    bfloat16 = overflowing(torch.bfloat16, every=EVERY, **scaling)
    early, late = (sum(right.skipped[part]) for part in (slice(START), slice(START, None)))
    wrong_late, bfloat16_late = (sum(run.skipped[START:]) for run in (wrong, bfloat16))
    growths = sum(b > a for a, b in pairwise(right.scales))
    overflowing_batches = (UPDATES - START) // EVERY
    return Measured(
        sides={
            "wrong": {
                "skipped after the first 20 updates": wrong_late,
                "scale at the end": wrong.scales[-1],
            },
            "right": {
                "skipped in the first 20 updates": early,
                "skipped after the first 20 updates": late,
                "growths of the scale": growths,
                "scale at the end": right.scales[-1],
                "skipped after the first 20 updates, bfloat16": bfloat16_late,
            },
        },
        conclusion=f"a healthy scaler skips {early} of the first {START} updates and {late} of the next {UPDATES - START}, in which it grew {growths} times; where every {EVERY}th batch overflows float16 it skips {wrong_late} "
        f"of {UPDATES - START} however far the scale falls, and {bfloat16_late} in bfloat16",
        holds={
            "healthy skips follow growths": late <= growths + 1,
            "every batch that overflows is skipped": wrong_late >= overflowing_batches,
            "the scale falls and does not help": wrong.scales[-1] < 1 < right.scales[-1],
            "in bfloat16 nothing overflows": bfloat16_late == 0,
        },
        curves={
            "wrong": [log2(scale) for scale in wrong.scales],
            "right": [log2(scale) for scale in right.scales],
        },
        axes=("update", "loss scale, power of two"),
    )
