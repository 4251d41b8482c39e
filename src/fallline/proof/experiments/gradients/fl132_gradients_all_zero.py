"""FL132: a loss that does not depend on the parameters: its value, its gradients, and what becomes of the model."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits, cross_entropy

from fallline.proof.experiment import Measured, experiment
from fallline.proof.experiments._training import flat

UPDATES = 100


@experiment(
    "FL132",
    claim="If every gradient is exactly zero, no parameter moves: cross-entropy over one class, or a loss behind round(), trains nothing and raises nothing.",
)
def gradients_all_zero() -> Measured:
    one_class = _train(lambda logits, y: cross_entropy(logits, torch.zeros(len(y)).long()))
    rounded = _train(lambda logits, y: (logits.sigmoid().round() - y).abs().mean())
    right = _train(binary_cross_entropy_with_logits)
    return Measured(
        sides={
            "wrong": {
                "parameters moved": one_class[0],
                "parameters moved, behind round()": rounded[0],
                "accuracy": one_class[1],
            },
            "right": {"parameters moved": right[0], "accuracy": right[1]},
        },
        conclusion=f"with cross-entropy over one class the parameters move by {one_class[0]:g} in {UPDATES} updates and accuracy is {one_class[1]:.2f}; "
        f"with the loss for two classes they move {right[0]:.1f} and it is {right[1]:.2f}",
        holds={
            "over one class nothing moves": one_class[0] == 0,
            "behind round() nothing moves": rounded[0] == 0,
            "the loss for two classes learns": right[0] > 0.5 and right[1] > 0.9,
            "without learning the model guesses": one_class[1] < 0.8,
        },
        curves={"wrong": one_class[2], "right": right[2]},
        axes=("update", "loss"),
    )


def _train(loss_of: object) -> tuple[float, float, list[float]]:
    """How far the parameters moved, the accuracy afterwards, and the losses."""
    assert callable(loss_of)
    torch.manual_seed(0)
    model = nn.Linear(8, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    start = flat(model.parameters())
    losses = []
    for _ in range(UPDATES):
        inputs, targets = _batch(64)
        loss: Tensor = loss_of(model(inputs), targets)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    inputs, targets = _batch(2048)
    right = ((model(inputs) > 0).float() == targets).float().mean().item()
    return (flat(model.parameters()) - start).norm().item(), right, losses


def _batch(size: int) -> tuple[Tensor, Tensor]:
    inputs = torch.randn(size, 8)
    return inputs, (inputs[:, :1] + inputs[:, 1:2] > 0).float()
