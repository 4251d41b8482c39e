"""FL136: a loss that was cut off from its model and made to require a gradient, and a penalty that was added as a number."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn.functional import mse_loss

from fallline.proof.experiment import Measured, experiment
from fallline.proof.experiments._training import flat

UPDATES = 200


@experiment(
    "FL136",
    claim="A loss without a graph trains nothing, also when its requires_grad is set by hand; a term that is added with item() changes only the printed number.",
)
def loss_without_graph() -> Measured:
    cut, whole = _train("cut"), _train("whole")
    number, penalised = _train("penalty as a number"), _train("penalty")
    return Measured(
        sides={
            "wrong": {"parameters moved": cut[0], "weights with the penalty": number[1]},
            "right": {"parameters moved": whole[0], "weights with the penalty": penalised[1]},
        },
        conclusion=f"with requires_grad set on a detached loss the parameters move by {cut[0]:g} in {UPDATES} updates, otherwise {whole[0]:.2f}; a penalty added with "
        f"item() leaves the weights at {number[1]:.2f}, as a tensor it shrinks them to {penalised[1]:.2f}",
        holds={
            "nothing moves": cut[0] == 0,
            "with its graph the loss trains": whole[0] > 0.5,
            "the penalty as a number does what no penalty does": abs(number[1] - whole[1]) < 1e-6,
            "as a tensor it shrinks the weights": penalised[1] < 0.8 * whole[1],
        },
    )


def _train(how: str) -> tuple[float, float]:
    """How far the parameters moved, and the size of the weights afterwards."""
    torch.manual_seed(0)
    model = nn.Linear(8, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    start, true = flat(model.parameters()), torch.randn(8, 1)
    for _ in range(UPDATES):
        inputs = torch.randn(32, 8)
        loss = mse_loss(model(inputs), inputs @ true)
        penalty = model.weight.pow(2).sum()
        match how:
            case "cut":
                loss = loss.detach().requires_grad_()
            case "penalty as a number":
                loss = loss + penalty.item()
            case "penalty":
                loss = loss + penalty
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return (flat(model.parameters()) - start).norm().item(), model.weight.norm().item()
