"""FL809: a model with dropout and BatchNorm that is evaluated in train mode."""

from __future__ import annotations

import copy

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from fallline.proof.experiment import Measured, experiment


@experiment(
    "FL809",
    claim="An evaluation in train mode measures a worse model than the one that was trained, differently on each call, and changes its running statistics.",
)
def mode_partial() -> Measured:
    model = _trained()
    right = _measure(copy.deepcopy(model).eval())
    wrong = _measure(copy.deepcopy(model).train())
    return Measured(
        sides={
            "wrong": {
                "accuracy": wrong[0],
                "the same again": wrong[1],
                "running mean moved": wrong[2],
            },
            "right": {
                "accuracy": right[0],
                "the same again": right[1],
                "running mean moved": right[2],
            },
        },
        conclusion=f"in train mode the accuracy is {wrong[0]:.3f}, and {wrong[1]:.3f} the second time; in eval mode {right[0]:.3f} both times; the running mean moves by {wrong[2]:.2f} and {right[2]:g}",
        holds={
            "it measures a worse model": wrong[0] < right[0] - 0.02,
            "differently each time": wrong[0] != wrong[1] and right[0] == right[1],
            "it changes the model": wrong[2] > 0.1 and right[2] == 0,
        },
    )


def _batch(size: int, shift: float = 0.0) -> tuple[Tensor, Tensor]:
    inputs = torch.randn(size, 16) + shift
    return inputs, (inputs[:, 0] + inputs[:, 1] > 2 * shift).long()


def _trained() -> nn.Module:
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Linear(16, 64), nn.BatchNorm1d(64), nn.ReLU(), nn.Dropout(0.5), nn.Linear(64, 2)
    )
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    for _ in range(200):
        inputs, targets = _batch(64)
        loss = cross_entropy(model(inputs), targets)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return model


@torch.no_grad()
def _measure(model: nn.Module) -> tuple[float, float, float]:
    before = model[1].running_mean.clone()  # type: ignore[index]
    torch.manual_seed(1)
    inputs, targets = _batch(2048)
    found = [
        sum(
            (model(x).argmax(1) == y).sum().item()
            for x, y in zip(inputs.split(8), targets.split(8), strict=True)
        )
        / 2048
        for _ in range(2)
    ]
    moved = (model[1].running_mean - before).norm().item()  # type: ignore[index]
    return found[0], found[1], moved
