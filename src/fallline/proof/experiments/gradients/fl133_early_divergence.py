"""FL133: a learning rate that is far too large, seen in the first updates, and what a smaller one does on the same data."""

from __future__ import annotations

from statistics import median

import torch
from torch import nn
from torch.nn.functional import cross_entropy

from fallline.proof.experiment import Measured, experiment

UPDATES = 200
EARLY = 20
SEEDS = range(5)


@experiment(
    "FL133",
    claim="A loss that is ten times its start after 20 updates does not come back by itself; with a learning rate 1,000 times smaller the same model learns.",
)
def early_divergence() -> Measured:
    wrong = [_train(20.0, seed) for seed in SEEDS]
    right = [_train(0.02, seed) for seed in SEEDS]
    start = median(losses[0] for losses in wrong)
    early = median(losses[EARLY] for losses in wrong)
    end = median(median(losses[-20:]) for losses in wrong)
    learned = median(median(losses[-20:]) for losses in right)
    return Measured(
        sides={
            "wrong": {
                "loss at the start": start,
                "loss after 20 updates": early,
                "loss after 200 updates": end,
            },
            "right": {"loss after 200 updates": learned},
        },
        conclusion=f"with AdamW at 20 the loss goes from {start:.1f} to {early:.0f} in {EARLY} updates and is {end:.0f} after {UPDATES}; at 0.02 it is {learned:.2f} (medians of five starts)",
        holds={
            "it is ten times its start after 20 updates, in every start": all(
                losses[EARLY] > 10 * losses[0] for losses in wrong
            ),
            "after 200 updates it is still above its start, in every start": all(
                median(losses[-20:]) > losses[0] for losses in wrong
            ),
            "the smaller rate learns, in every start": all(
                median(losses[-20:]) < 0.5 * losses[0] for losses in right
            ),
        },
        curves={"wrong": wrong[0][:100], "right": right[0][:100]},
        axes=("update", "loss"),
    )


def _train(rate: float, seed: int) -> list[float]:
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 4))
    optimizer = torch.optim.AdamW(model.parameters(), lr=rate)
    losses = []
    for _ in range(UPDATES):
        inputs = torch.randn(64, 8)
        loss = cross_entropy(model(inputs), inputs[:, :4].argmax(1))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses
