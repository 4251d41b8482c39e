"""FL012: labels that are shifted twice, or not at all."""

from __future__ import annotations

import torch
from torch import Tensor

from fallline.proof.experiment import Measured, experiment
from fallline.proof.experiments.tuning._toy import PAD, Toy, sentences, train

EVERY = 2  # of the losses, in the plot


@experiment(
    "FL012",
    claim="Labels that are shifted twice or not at all give a loss that falls like any other, and a model that does not predict the next word.",
)
def labels_shifted_twice() -> Measured:
    right, right_loss = _trained(0)
    twice, twice_loss = _trained(1)
    never, never_loss = _trained(-1)
    name, loss = "next words that are right", "loss at the end"
    return Measured(
        sides={
            "wrong": {name: twice, loss: twice_loss[-1]},
            "never shifted": {name: never, loss: never_loss[-1]},
            "right": {name: right, loss: right_loss[-1]},
        },
        conclusion=f"after training the next word is right in {right:.0%} of cases; shifted twice {twice:.0%}, never shifted {never:.0%}, with losses of {right_loss[-1]:.2f}, {twice_loss[-1]:.2f} and {never_loss[-1]:.2g}",
        holds={
            "right, it predicts": right > 0.7,
            "shifted twice, it does not": twice < 0.3,
            "never shifted, it does not": never < 0.3,
            "all losses fall": min(x[0] / x[-1] for x in (right_loss, twice_loss, never_loss)) > 2,
        },
        curves={
            "wrong": twice_loss[::EVERY],
            "never shifted": never_loss[::EVERY],
            "right": right_loss[::EVERY],
        },
        positions=range(0, len(right_loss), EVERY),
        axes=("update", "loss"),
    )


def _trained(shift: int) -> tuple[float, list[float]]:
    torch.manual_seed(0)
    ids, model = sentences(96), Toy()
    losses = train(model, ids, _moved(ids, shift))
    fresh = sentences(128, seed=1)
    with torch.no_grad():
        said = model(fresh)[:, :-1].argmax(-1)
    counts = fresh[:, 1:] != PAD
    counts[:, 0] = False  # the first word is anybody's guess
    return float((said == fresh[:, 1:])[counts].double().mean()), losses


def _moved(ids: Tensor, shift: int) -> Tensor:
    labels = torch.full_like(ids, -100)
    if shift == 1:
        labels[:, :-1] = ids[:, 1:]
    elif shift == -1:
        labels[:, 1:] = ids[:, :-1]
    else:
        labels = ids.clone()
    return labels.masked_fill(labels == PAD, -100)
