"""FL010: the end of the text is never a target."""

from __future__ import annotations

import torch

from fallline.proof.experiment import Measured, experiment
from fallline.proof.experiments.tuning._toy import END, PAD, Toy, sentences, train


@experiment(
    "FL010",
    claim="A model whose end token is masked with the padding gives it a probability near zero where the text ends; with the end in the loss it ends its texts.",
)
def end_token_masked() -> Measured:
    ids = sentences(96)
    wrong = _ends(ids.masked_fill((ids == PAD) | (ids == END), -100))
    right = _ends(ids.masked_fill(ids == PAD, -100))
    name = "probability of the end token at the end of unseen texts"
    return Measured(
        sides={"wrong": {name: wrong}, "right": {name: right}},
        conclusion=f"at the end of a text the end token has a probability of {wrong:.4f} when it was masked, {right:.2f} when it was learned (a text may go on there, so not 1)",
        holds={
            "masked, it is never said": wrong < 0.01,
            "learned, it is": right > 10 * wrong and right > 0.1,
        },
    )


def _ends(labels: torch.Tensor) -> float:
    torch.manual_seed(0)
    model = Toy()
    train(model, sentences(96), labels)
    fresh = sentences(128, seed=1)
    last = (fresh == END).nonzero()
    with torch.no_grad():
        after = model(fresh).softmax(-1)
    return float(after[last[:, 0], last[:, 1] - 1, END].mean())
