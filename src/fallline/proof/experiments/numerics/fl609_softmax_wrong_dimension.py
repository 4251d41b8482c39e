"""FL609: a softmax over the batch, and what one sample's prediction then depends on."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional as F

from fallline.proof.experiment import Measured, experiment

CLASSES, UPDATES = 10, 200


@experiment(
    "FL609",
    claim="With the softmax over the batch, a model that was trained with nll_loss gives every class of a single sample the probability 1, "
    "and its accuracy on the data is behind that of a softmax over the classes.",
)
def softmax_wrong_dimension() -> Measured:
    wrong, wrong_alone = _train(dim=0)
    right, right_alone = _train(dim=1)
    return Measured(
        sides={
            "wrong": {"accuracy": wrong, "sum of one sample's probabilities, alone": wrong_alone},
            "right": {"accuracy": right, "sum of one sample's probabilities, alone": right_alone},
        },
        conclusion=f"the accuracy is {wrong:.0%} with dim=0 and {right:.0%} with dim=1; the probabilities of a sample on its own sum to "
        f"{wrong_alone:.0f} and {right_alone:.0f}",
        holds={
            "the probabilities of one sample do not sum to 1": abs(wrong_alone - CLASSES) < 1e-3,
            "over the classes they do": abs(right_alone - 1) < 1e-3,
            "the model is behind": wrong < right,
        },
    )


def _train(dim: int) -> tuple[float, float]:
    torch.manual_seed(0)
    centres = 1.2 * torch.randn(CLASSES, 16)
    target = torch.arange(CLASSES).repeat(40)
    x = centres[target] + torch.randn(len(target), 16)
    model = nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, CLASSES))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(UPDATES):
        batch = torch.randperm(len(x), generator=torch.Generator().manual_seed(step))[:64]
        loss = F.nll_loss(F.log_softmax(model(x[batch]), dim=dim), target[batch])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    accuracy = (model(x).argmax(1) == target).float().mean().item()
    return accuracy, F.softmax(model(x[:1]), dim=dim).sum().item()
