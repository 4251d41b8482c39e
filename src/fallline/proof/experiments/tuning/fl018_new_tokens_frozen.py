"""FL018: a word that was added to the vocabulary, with its row frozen and with its row trained."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from fallline.proof.experiment import Measured, experiment
from fallline.proof.experiments.tuning._toy import WORDS, Toy, sentences, train

NEW = WORDS


@experiment(
    "FL018",
    claim="If embedding and head are frozen after a word was added, the rest of the model learns to say it far less than if its rows are trained.",
)
def new_tokens_frozen() -> Measured:
    wrong, right = _learned(frozen=True), _learned(frozen=False)
    name = "loss of the new word"
    return Measured(
        sides={"wrong": {name: wrong}, "right": {name: right}},
        conclusion=f"after training the new word has a loss of {wrong:.2f} with its rows frozen and of {right:.3f} with its rows trained",
        holds={"frozen, it stays unlikely": wrong > 5 * right},
    )


def _learned(*, frozen: bool) -> float:
    torch.manual_seed(0)
    model, ids = Toy(words=WORDS + 1), _marked(sentences(96))
    with torch.no_grad():  # as resizing does: the mean of what is there
        for weight in (model.embed.weight, model.head.weight):
            weight[NEW] = weight[:NEW].mean(0)
    if frozen:
        for parameter in (model.embed.weight, *model.head.parameters()):
            parameter.requires_grad_(False)
    train(model, ids, ids.masked_fill(ids != NEW, -100), updates=60, rate=3e-3)
    with torch.no_grad():
        logits = model(ids)[:, :-1]
    return float(
        F.cross_entropy(
            logits.flatten(0, 1), ids[:, 1:].masked_fill(ids[:, 1:] != NEW, -100).flatten()
        )
    )


def _marked(ids: Tensor) -> Tensor:
    """The new word comes third in every sentence."""
    return torch.cat([ids[:, :2], torch.full((len(ids), 1), NEW), ids[:, 2:]], dim=1)
