"""FL605: softmax, then log, then pick, instead of the fused operation."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional as F

from fallline.proof.experiment import Measured, experiment
from fallline.proof.experiments.numerics._at import slope, value, words

GAPS = [float(gap) for gap in range(0, 121, 3)]
Loss = Callable[[Tensor], Tensor]


@experiment(
    "FL605",
    claim="Written by hand, a badly wrong sample has an infinite loss, or with an epsilon a flat one without gradient; the "
    "fused operation is exact and pulls with full strength.",
)
def hand_written_cross_entropy() -> Measured:
    bare, guarded, fused = _loss(_pick), _loss(_pick_guarded), _loss(_fused)
    vanishes = {
        str(dtype)[6:]: _gap_where_softmax_is_zero(dtype)
        for dtype in (torch.float32, torch.float16)
    }
    return Measured(
        sides={
            "wrong": {
                "loss, logits 110 apart": words(value(bare, 110.0)),
                "with + 1e-8: loss": value(guarded, 110.0),
                "with + 1e-8: gradient": slope(guarded, 110.0),
            },
            "right": {
                "loss, logits 110 apart": value(fused, 110.0),
                "gradient": slope(fused, 110.0),
                "loss, logits -10,000 and 10,000": value(fused, 20_000.0),
            },
            "gap from which a softmax is exactly 0": vanishes,
        },
        conclusion=f"at logits 110 apart the hand-written loss is {value(bare, 110.0)}, or with an epsilon "
        f"{value(guarded, 110.0):.1f} with gradient {slope(guarded, 110.0):.0f}; cross_entropy gives {value(fused, 110.0):.0f} with gradient "
        f"{slope(fused, 110.0):.0f}",
        holds={
            "a softmax is 0 from a gap of 104 in float32, of 18 in float16": vanishes
            == {"float32": 104, "float16": 18},
            "the bare loss is infinite": value(bare, 110.0) == math.inf,
            "the guarded loss is flat": slope(guarded, 110.0) == 0,
            "the fused gradient is full": abs(slope(fused, 110.0) - 1) < 1e-6,
            "the fused loss is exact, also at 10,000": value(fused, 110.0) == 110
            and value(fused, 20_000.0) == 20_000,
        },
        curves={
            "wrong": [slope(guarded, gap) for gap in GAPS],
            "right": [slope(fused, gap) for gap in GAPS],
        },
        axes=("how far the right answer's logit lies below", "gradient"),
        positions=GAPS,
    )


def _loss(cross_entropy: Loss) -> Loss:
    """The loss as a function of how far the right answer's logit lies below the wrong one's."""
    return lambda gap: cross_entropy(torch.stack([-gap / 2, gap / 2]))


def _pick(logits: Tensor) -> Tensor:
    return -torch.softmax(logits, 0).log()[0]


def _pick_guarded(logits: Tensor) -> Tensor:
    return -(torch.softmax(logits, 0) + 1e-8).log()[0]


def _fused(logits: Tensor) -> Tensor:
    return F.cross_entropy(logits, torch.tensor(0))


def _gap_where_softmax_is_zero(dtype: torch.dtype) -> int:
    """The smallest whole gap at which the smaller of two probabilities is exactly 0."""
    return next(
        gap
        for gap in range(200)
        if torch.softmax(torch.tensor([0.0, -float(gap)], dtype=dtype), 0)[1] == 0
    )
