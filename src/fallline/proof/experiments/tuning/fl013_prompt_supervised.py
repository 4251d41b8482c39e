"""FL013: long prompts, short answers, and how much of the gradient is about the prompt."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from fallline.proof.experiment import Measured, experiment
from fallline.proof.experiments.tuning._toy import FIRST, WORDS, Toy, train

PROMPT, ANSWER, UPDATES = 24, 2, 120


@experiment(
    "FL013",
    claim="With prompts much longer than answers, most of the loss is about the prompt, and the same number of updates teaches the answers less.",
)
def prompt_supervised() -> Measured:
    whole, only = _answered(prompt=True), _answered(prompt=False)
    name = "loss of the answers"
    share = PROMPT / (PROMPT + ANSWER)
    return Measured(
        sides={
            "wrong": {name: whole, "share of labels that are prompt": share},
            "right": {name: only, "share of labels that are prompt": 0.0},
        },
        conclusion=f"{share:.0%} of the labels are prompt; after {UPDATES} updates the answers have a loss of {whole:.2f}, or {only:.2f} if only they are learned",
        holds={"answers are learned less": whole > 1.2 * only},
    )


def _answered(*, prompt: bool) -> float:
    torch.manual_seed(0)
    ids, model = _samples(0), Toy()
    labels = ids.clone()
    if not prompt:
        labels[:, :PROMPT] = -100
    train(model, ids, labels, updates=UPDATES, rate=3e-3)
    with torch.no_grad():
        logits = model(ids)[:, PROMPT - 1 : -1]
    return float(F.cross_entropy(logits.flatten(0, 1), ids[:, PROMPT:].flatten()))


def _samples(seed: int) -> Tensor:
    """Random words, then an answer that follows from the last of them."""
    generator = torch.Generator().manual_seed(seed)
    rows = torch.randint(FIRST, WORDS, (128, PROMPT + ANSWER), generator=generator)
    for place in range(PROMPT, PROMPT + ANSWER):
        rows[:, place] = FIRST + (3 * (rows[:, place - 1] - FIRST) + 1) % (WORDS - FIRST)
    return rows
