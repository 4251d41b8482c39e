"""FL015: two samples in one row, with and without a border."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from fallline.proof.experiment import Measured, experiment

LENGTH, WIDTH, WORDS = 8, 32, 20


@experiment(
    "FL015",
    claim="Under a causal mask alone, changing the first of two packed samples changes what is said about the second; with a mask that stops at the border it does not.",
)
def packing_leaks() -> Measured:
    causal = torch.ones(2 * LENGTH, 2 * LENGTH).tril().bool()
    border = causal.clone()
    border[LENGTH:, :LENGTH] = False
    wrong, right = _change(causal), _change(border)
    name = "largest change of the second sample's logits"
    return Measured(
        sides={"wrong": {name: wrong}, "right": {name: right}},
        conclusion=f"the second sample's logits change by up to {wrong:.2f} without a border, by {right:.0f} with one",
        holds={"they leak": wrong > 1e-3, "a border stops it": right == 0},
    )


def _change(allowed: Tensor) -> float:
    torch.manual_seed(0)
    embed, head = nn.Embedding(WORDS, WIDTH), nn.Linear(WIDTH, WORDS)
    layer = nn.TransformerEncoderLayer(WIDTH, 4, 64, batch_first=True, dropout=0.0)
    one = torch.randint(WORDS, (1, 2 * LENGTH))
    other = one.clone()
    other[:, :LENGTH] = (one[:, :LENGTH] + 1) % WORDS
    with torch.no_grad():
        first, second = (head(layer(embed(ids), src_mask=~allowed)) for ids in (one, other))
    return float((first - second)[:, LENGTH:].abs().max())
