"""FL135: a decay that multiplies the current learning rate, and one that multiplies the first."""

from __future__ import annotations

import torch
from torch import nn

from fallline.proof.experiment import Measured, experiment

EPOCHS, FACTOR = 20, 0.95


@experiment(
    "FL135",
    claim="A schedule that multiplies the current rate by 0.95 ** epoch compounds: after 20 epochs the rate is thousands of times too small.",
)
def learning_rate_feedback() -> Measured:
    wrong, right = _train(from_current=True), _train(from_current=False)
    factor = right[0][-1] / wrong[0][-1]
    return Measured(
        sides={
            "wrong": {"last epoch's rate": wrong[0][-1], "loss at the end": wrong[1]},
            "right": {"last epoch's rate": right[0][-1], "loss at the end": right[1]},
        },
        conclusion=f"after {EPOCHS} epochs the rate is {wrong[0][-1]:.1e} instead of {right[0][-1]:.2g}, {factor:,.0f} times too small, and the loss is {wrong[1]:.3f} instead of {right[1]:.4f}",
        holds={
            "the rate is thousands of times too small": factor > 1_000,
            "it learns less": wrong[1] > 2 * right[1],
        },
        curves={"wrong": wrong[0], "right": right[0]},
        axes=("epoch", "learning rate"),
    )


def _train(*, from_current: bool) -> tuple[list[float], float]:
    torch.manual_seed(0)
    model, true = nn.Linear(8, 1), torch.randn(8, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    rates, losses = [], []
    for epoch in range(EPOCHS):
        for group in optimizer.param_groups:
            group["lr"] = (group["lr"] if from_current else 0.01) * FACTOR**epoch
            rates.append(float(group["lr"]))
        for _ in range(20):
            inputs = torch.randn(32, 8)
            loss = (model(inputs) - inputs @ true).pow(2).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
    return rates, sum(losses[-20:]) / 20
