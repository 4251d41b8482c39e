"""FL139: what a regression learns when (B, 1) predictions meet (B,) targets in the loss."""

from __future__ import annotations

import warnings

import torch
from torch import nn
from torch.nn.functional import mse_loss

from fallline.proof.experiment import Measured, experiment

UPDATES = 400


@experiment(
    "FL139",
    claim="If (B, 1) predictions meet (B,) targets, the loss compares every prediction with every target, and the model learns their mean instead of the function.",
)
def broadcast_in_loss() -> Measured:
    wrong, right = _train(squeeze=False), _train(squeeze=True)
    return Measured(
        sides={
            "wrong": {"error on new data": wrong[0], "spread of predictions": wrong[1]},
            "right": {"error on new data": right[0], "spread of predictions": right[1]},
        },
        conclusion=f"with (B, 1) against (B,) the mean squared error on new data is {wrong[0]:.2f} (1.0 is that of predicting the mean); with equal shapes it is {right[0]:.3f}",
        holds={
            "broadcasting learns no more than the mean": wrong[0] > 0.8,
            "all its predictions are nearly the same": wrong[1] < 0.25,
            "equal shapes learn the function": right[0] < 0.05,
        },
        curves={"wrong": wrong[2][:100], "right": right[2][:100]},
        axes=("update", "loss"),
    )


def _train(*, squeeze: bool) -> tuple[float, float, list[float]]:
    torch.manual_seed(0)
    model = nn.Linear(8, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    true = nn.functional.normalize(torch.randn(8), dim=0)
    losses = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch warns about the shapes
        for _ in range(UPDATES):
            inputs = torch.randn(64, 8)
            predicted = model(inputs)
            loss = mse_loss(predicted.squeeze(1) if squeeze else predicted, inputs @ true)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
    inputs = torch.randn(4096, 8)
    predicted = model(inputs).squeeze(1).detach()
    return mse_loss(predicted, inputs @ true).item(), predicted.std().item(), losses
