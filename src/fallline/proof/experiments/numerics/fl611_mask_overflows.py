"""FL611: masks that make rows of a softmax NaN: times infinity, the smallest number twice, rows without a key, CTC after -inf."""

from __future__ import annotations

import torch
from torch.nn import functional as F

from fallline.proof.experiment import Measured, experiment

LOWEST = torch.finfo(torch.float32).min


@experiment(
    "FL611",
    claim="`mask * -inf` is NaN where the mask is 0; two masks of the smallest number add up to -inf, NaN where they cover a row; a row without a single key is NaN after softmax, and CTC's gradient after -inf is NaN.",
)
def mask_overflows() -> Measured:
    torch.manual_seed(0)
    scores, keep = torch.randn(4, 8, 8), torch.rand(4, 1, 8) > 0.3
    keep[0] = False
    times = torch.softmax(scores + (~keep) * float("-inf"), -1)
    padding = torch.zeros(4, 1, 8).masked_fill(~keep, LOWEST)
    documents = torch.zeros(8, 8).masked_fill(torch.eye(8) == 0, LOWEST)
    documents[0] = LOWEST
    twice = torch.softmax(scores + documents + padding, -1)
    causal = torch.softmax(scores + torch.full((8, 8), LOWEST).triu(1) + padding, -1)
    once = torch.softmax(scores.masked_fill(~keep, -1e4), -1)
    ctc_wrong, ctc_right = _ctc(float("-inf")), _ctc(-1e4)
    return Measured(
        sides={
            "wrong": {
                "values that are NaN, percent": 100 * times.isnan().float().mean().item(),
                "rows that two masks make NaN": int(twice.isnan().any(-1).sum()),
                "CTC gradients that are NaN": ctc_wrong,
            },
            "right": {
                "values that are NaN, percent": 100 * once.isnan().float().mean().item(),
                "rows that a causal mask and padding make NaN": int(causal.isnan().any(-1).sum()),
                "CTC gradients that are NaN": ctc_right,
            },
        },
        conclusion=f"mask * -inf makes {100 * times.isnan().float().mean().item():.0f} % of the attention NaN, a row that two masks of the smallest number cover is NaN (a causal mask and padding never cover one), "
        f"and {ctc_wrong} of CTC's gradients are NaN after -inf; filled with -1e4 nothing is",
        holds={
            "0 times infinity is NaN": bool(times.isnan().any()),
            "the smallest number twice is -inf, and a whole row of it NaN": bool(
                twice.isnan().any()
            ),
            "a causal mask leaves each position itself": not causal.isnan().any(),
            "CTC's gradient is NaN": ctc_wrong > 0,
            "a large finite number is safe": not once.isnan().any() and ctc_right == 0,
        },
    )


def _ctc(fill: float) -> int:
    """How many gradients are NaN: two alignments, the second with fewer keys than the batch has room for."""
    torch.manual_seed(0)
    leaf = torch.randn(12, 2, 6, requires_grad=True)
    keys, lengths = torch.arange(6), torch.tensor([5, 3])
    filled = leaf.masked_fill(keys.view(1, 1, -1) > lengths.view(1, -1, 1), fill)
    targets = torch.arange(1, 6).repeat(2, 1)
    F.ctc_loss(
        torch.log_softmax(filled, -1), targets, torch.tensor([12, 12]), lengths, zero_infinity=True
    ).backward()
    assert leaf.grad is not None
    return int(leaf.grad.isnan().sum())
