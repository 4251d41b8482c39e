"""FL306: a new head, made after and before the optimizer took hold of the parameters."""

from __future__ import annotations

import torch
from torch import nn

from fallline.proof.experiment import Measured, experiment
from fallline.proof.experiments.distributed._ddp import batches, mse, network

UPDATES = 60


@experiment(
    "FL306",
    claim="A head that replaces the old one after the optimizer was made is never trained, and nothing raises.",
)
def parameters_replaced() -> Measured:
    wrong, right = _train(head_first=False), _train(head_first=True)
    return Measured(
        sides={
            "wrong": {
                "largest change of the new head": wrong[1],
                f"loss after {UPDATES} updates": wrong[0][-1],
            },
            "right": {
                "largest change of the new head": right[1],
                f"loss after {UPDATES} updates": right[0][-1],
            },
        },
        conclusion=f"after {UPDATES} updates the head that came after the optimizer has changed by {wrong[1]:g} and the loss is {wrong[0][-1]:.2g}; "
        f"made before it, the loss is {right[0][-1]:.2g}",
        holds={
            "replaced afterwards, the head never changes": wrong[1] == 0,
            "replaced before, it does": right[1] > 0.01,
            "and the loss ends lower": right[0][-1] < wrong[0][-1],
        },
        curves={"wrong": wrong[0], "right": right[0]},
        axes=("update", "loss"),
    )


def _train(*, head_first: bool) -> tuple[list[float], float]:
    model = network()
    assert isinstance(model, nn.Sequential)
    head = nn.Linear(32, 1)
    if head_first:
        model[2] = head
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    model[2] = head
    start = head.weight.detach().clone()
    losses = []
    for x, y in batches(0, UPDATES):
        loss = mse(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses, (head.weight.detach() - start).abs().max().item()
