"""FL014: a beginning that the model has never seen."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from fallline.proof.experiment import Measured, experiment
from fallline.proof.experiments.tuning._toy import BEGIN, PAD, Toy, sentences, train


@experiment(
    "FL014",
    claim="A model that was trained with one begin token predicts the first word worse after two of them.",
)
def bos_twice() -> Measured:
    torch.manual_seed(0)
    model, ids = Toy(), sentences(96, starts=3)
    train(model, ids, ids.masked_fill(ids == PAD, -100))
    fresh = sentences(128, seed=1, starts=3)
    twice = torch.cat([torch.full((len(fresh), 1), BEGIN), fresh], dim=1)
    with torch.no_grad():
        right, wrong = _loss(model, fresh, 1), _loss(model, twice, 2)
    name = "loss of the first word"
    return Measured(
        sides={"wrong": {name: wrong}, "right": {name: right}},
        conclusion=f"the first word has a loss of {wrong:.2f} after two begin tokens and of {right:.2f} after one",
        holds={"two are worse": wrong > 1.02 * right},
    )


def _loss(model: Toy, ids: Tensor, begin: int) -> float:
    logits, labels = model(ids)[:, begin - 1 : begin], ids[:, begin : begin + 1]  # the first word
    return float(
        F.cross_entropy(logits.flatten(0, 1), labels.masked_fill(labels == PAD, -100).flatten())
    )
