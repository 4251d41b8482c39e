"""FL028: a data set that is sorted by class."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional as F

from fallline.proof.experiment import Measured, experiment

CLASSES, EACH, BATCH = 4, 256, 16


@experiment(
    "FL028",
    claim="Over data that is sorted by class, one epoch leaves a model that says the last class; the same data shuffled teaches all of them, though the sorted run's losses look better.",
)
def targets_degenerate() -> Measured:
    wrong, wrong_loss = _epoch(shuffled=False)
    right, right_loss = _epoch(shuffled=True)
    name = "accuracy over all classes"
    return Measured(
        sides={
            "wrong": {name: wrong, "median loss": wrong_loss},
            "right": {name: right, "median loss": right_loss},
        },
        conclusion=f"sorted, one epoch ends at {wrong:.0%} accuracy with a median loss of {wrong_loss:.3f}; shuffled, at {right:.0%} with {right_loss:.3f}",
        holds={
            "sorted, it forgets": wrong < right - 0.2,
            "its loss looks better": wrong_loss < right_loss,
        },
    )


def _epoch(*, shuffled: bool) -> tuple[float, float]:
    torch.manual_seed(0)
    y = torch.arange(CLASSES).repeat_interleave(EACH)
    x = F.one_hot(y, 8).float() + 0.8 * torch.randn(len(y), 8)
    order = torch.randperm(len(y)) if shuffled else torch.arange(len(y))
    model = nn.Linear(8, CLASSES)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    losses = []
    for start in range(0, len(y), BATCH):
        rows = order[start : start + BATCH]
        loss = F.cross_entropy(model(x[rows]), y[rows])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
    with torch.no_grad():
        accuracy = float((model(x).argmax(-1) == y).double().mean())
    return accuracy, float(torch.stack(losses).median())
