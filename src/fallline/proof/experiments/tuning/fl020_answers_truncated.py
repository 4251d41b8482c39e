"""FL020: prompts that leave no room for their answers."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from fallline.proof.experiment import Measured, experiment
from fallline.proof.experiments.tuning._toy import FIRST, PAD, WORDS, Toy, train

SHORT, LONG, CUT = 4, 16, 12


@experiment(
    "FL020",
    claim="Where the cut removes the answers of long prompts, the model learns those of short prompts only, although half of the batches was spent on long ones.",
)
def answers_truncated() -> Measured:
    wrong, right = _after(CUT), _after(LONG + 1)
    name = "loss of the answers to long prompts"
    return Measured(
        sides={
            "wrong": {name: wrong, "samples without a label": 0.5},
            "right": {name: right, "samples without a label": 0.0},
        },
        conclusion=f"cut at {CUT}, the answers to prompts of {LONG} words have a loss of {wrong:.2f}; not cut, {right:.2f}",
        holds={"cut answers are learned less": wrong > 1.3 * right},
    )


def _after(cut: int) -> float:
    torch.manual_seed(0)
    ids, labels = _samples(0)
    model = Toy()
    train(model, ids[:, :cut], labels[:, :cut], updates=120)
    fresh, wanted = _samples(1)
    with torch.no_grad():
        logits = model(fresh)[:, :-1]
    long = wanted[:, LONG] != -100
    return float(F.cross_entropy(logits[long, LONG - 1], wanted[long, LONG]))


def _samples(seed: int) -> tuple[Tensor, Tensor]:
    """Prompts of two lengths; the answer repeats their first word."""
    generator = torch.Generator().manual_seed(seed)
    ids = torch.full((256, LONG + 1), PAD)
    labels = torch.full_like(ids, -100)
    for row in range(len(ids)):
        length = LONG if row % 2 else SHORT
        ids[row, :length] = torch.randint(FIRST, WORDS, (length,), generator=generator)
        ids[row, 0] = FIRST + row % 4
        ids[row, length] = labels[row, length] = ids[row, 0]
    return ids, labels
