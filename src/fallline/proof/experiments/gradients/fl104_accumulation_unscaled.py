"""FL104: k backward passes, one step, no division."""

from __future__ import annotations

import torch

from fallline.proof.experiment import Measured, experiment
from fallline.proof.experiments._tasks import regression

K = 4


@experiment(
    "FL104",
    claim="Without the division the first SGD step is k times too long; Adam hardly notices.",
    taught="Not scaling the loss acts like a learning rate of k times, with any optimizer.",
)
def accumulation_unscaled() -> Measured:
    wrong, right = _train(torch.optim.SGD, 1), _train(torch.optim.SGD, K)
    adam_wrong, adam_right = _train(torch.optim.Adam, 1), _train(torch.optim.Adam, K)
    sgd, adam = wrong.first_step / right.first_step, adam_wrong.first_step / adam_right.first_step
    return Measured(
        sides={
            "wrong": {
                "first SGD step": wrong.first_step,
                "loss after 40 updates": wrong.losses[-1],
            },
            "right": {
                "first SGD step": right.first_step,
                "loss after 40 updates": right.losses[-1],
            },
        },
        conclusion=f"with k = {K} the first SGD step is {sgd:.2f} times as long as it should be, Adam's {adam:.4f} times",
        holds={
            "SGD's first step is k times too long": abs(sgd - K) < 1e-3,
            "Adam's first step is within one percent": abs(adam - 1) < 0.01,
        },
        curves={"wrong": wrong.losses, "right": right.losses},
        axes=("update", "loss (SGD)"),
    )


class _train:
    """40 updates of k micro-batches each; the loss is divided by `divisor`."""

    def __init__(self, optimizer_class: type[torch.optim.Optimizer], divisor: int) -> None:
        model, batches = regression(updates=40, k=K)
        optimizer = optimizer_class(model.parameters(), lr=0.2)  # type: ignore[call-arg]
        start = torch.nn.utils.parameters_to_vector(model.parameters()).detach().clone()
        self.losses: list[float] = []
        self.first_step = 0.0
        for window in batches:
            total = 0.0
            for x, y in window:
                loss = torch.nn.functional.mse_loss(model(x), y)
                (loss / divisor).backward()
                total += loss.item() / K
            optimizer.step()
            optimizer.zero_grad()
            if not self.losses:
                now = torch.nn.utils.parameters_to_vector(model.parameters()).detach()
                self.first_step = (now - start).norm().item()
            self.losses.append(total)
