"""FL810: an average of a model's parameters with and without its BatchNorm statistics."""

from __future__ import annotations

import copy

import torch
from torch import Tensor, nn
from torch.nn.functional import mse_loss

from fallline.proof.experiment import Measured, experiment

UPDATES = 300


@experiment(
    "FL810",
    claim="An exponential average of the parameters alone keeps the running statistics of the untrained model, and predicts far worse than one with them.",
)
def statistics_in_evaluation() -> Measured:
    wrong, right = _train(buffers=False), _train(buffers=True)
    return Measured(
        sides={
            "wrong": {"error of the average": wrong[0], "error of the model": wrong[1]},
            "right": {"error of the average": right[0], "error of the model": right[1]},
        },
        conclusion=f"the average without the statistics has an error of {wrong[0]:.2f}, with them {right[0]:.3f} (the model itself {right[1]:.3f})",
        holds={
            "without its statistics the average is far off": wrong[0] > 5 * right[0],
            "with them it is as good as the model": right[0] < 2 * right[1],
        },
    )


def _train(*, buffers: bool) -> tuple[float, float]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Linear(32, 1))
    average = copy.deepcopy(model)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    for _ in range(UPDATES):
        inputs, targets = _batch(64)
        loss = mse_loss(model(inputs), targets)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        with torch.no_grad():
            for kept, now in zip(average.parameters(), model.parameters(), strict=True):
                kept.lerp_(now, 0.05)
            for held, seen in zip(average.buffers(), model.buffers(), strict=True):
                if buffers:
                    held.copy_(seen)
    inputs, targets = _batch(2048)
    with torch.no_grad():
        return (
            mse_loss(average.eval()(inputs), targets).item(),
            mse_loss(model.eval()(inputs), targets).item(),
        )


def _batch(size: int) -> tuple[Tensor, Tensor]:
    inputs = 3 * torch.randn(size, 8) + 2
    return inputs, inputs[:, :1] - inputs[:, 1:2]
