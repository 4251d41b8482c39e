"""FL804: model.eval() for an evaluation, and no model.train() after it."""

from __future__ import annotations

import torch
from torch import nn

from fallline.proof.experiment import Measured, experiment

UPDATES, EVALUATION = 60, 10  # the first evaluation comes after 10 updates


@experiment(
    "FL804",
    claim="After an evaluation that is not undone, training goes on without dropout and BatchNorm learns nothing more about "
    "the data.",
)
def eval_not_restored() -> Measured:
    wrong, right = _train(restore=False), _train(restore=True)
    return Measured(
        sides={
            "wrong": {
                "batches BatchNorm has learned from": wrong.tracked,
                "running mean at the end (the data's is 3)": wrong.means[-1],
                "share of units dropped in the last update": wrong.dropped,
            },
            "right": {
                "batches BatchNorm has learned from": right.tracked,
                "running mean at the end (the data's is 3)": right.means[-1],
                "share of units dropped in the last update": right.dropped,
            },
        },
        conclusion=f"of {UPDATES} batches BatchNorm learns from {wrong.tracked} instead of {right.tracked}, and {wrong.dropped:.0%} of the units are "
        f"dropped instead of {right.dropped:.0%}",
        holds={
            "BatchNorm stops at the evaluation": wrong.tracked == EVALUATION,
            "and keeps an early estimate": abs(wrong.means[-1] - 3)
            > 0.5
            > abs(right.means[-1] - 3),
            "dropout is off": wrong.dropped == 0,
            "with train() both go on": right.tracked == UPDATES and 0.4 < right.dropped < 0.6,
        },
        curves={"wrong": wrong.means, "right": right.means},
        axes=("update", "BatchNorm's running mean"),
    )


class _train:
    def __init__(self, *, restore: bool) -> None:
        torch.manual_seed(0)
        norm, dropout, head = nn.BatchNorm1d(16), nn.Dropout(0.5), nn.Linear(16, 1)
        model = nn.Sequential(norm, dropout, head)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        seen: list[float] = []  # zeros among what dropout lets through, update by update
        dropout.register_forward_hook(
            lambda module, inputs, output: seen.append((output == 0).float().mean().item())
        )
        self.means: list[float] = []
        for number, batch in enumerate(3 + torch.randn(UPDATES, 32, 16), start=1):
            model(batch).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
            assert norm.running_mean is not None
            self.means.append(norm.running_mean.mean().item())
            self.dropped = seen[-1]
            if number == EVALUATION:
                model.eval()
                model(batch)
                if restore:
                    model.train()
        assert norm.num_batches_tracked is not None
        self.tracked = int(norm.num_batches_tracked)
