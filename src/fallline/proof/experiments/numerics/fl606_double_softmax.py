"""FL606: probabilities given to a loss that expects logits."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fallline.proof.experiment import Measured, experiment

CLASSES, UPDATES = 10, 100


@experiment(
    "FL606",
    claim="A softmax before cross_entropy keeps the loss above 1.46 with 10 classes and nearly stops the gradient where the "
    "model is confident and wrong: after 100 updates it is far behind.",
)
def double_softmax() -> Measured:
    wrong, right = _train(squash=True), _train(squash=False)
    floor, lowest = _perfect_model(squash=True), _perfect_model(squash=False)
    binary_floor = F.binary_cross_entropy_with_logits(
        torch.sigmoid(torch.tensor(100.0)), torch.tensor(1.0)
    ).item()
    wrong_pull, right_pull = _pull_when_wrong(squash=True), _pull_when_wrong(squash=False)
    return Measured(
        sides={
            "wrong": {
                "accuracy after 100 updates": wrong.accuracy,
                "lowest possible loss, 10 classes": floor,
                "lowest possible binary loss": binary_floor,
                "gradient where confident and wrong": wrong_pull,
            },
            "right": {
                "accuracy after 100 updates": right.accuracy,
                "lowest possible loss, 10 classes": lowest,
                "gradient where confident and wrong": right_pull,
            },
        },
        conclusion=f"after {UPDATES} updates the accuracy is {wrong.accuracy:.0%} with the softmax and {right.accuracy:.0%} without; the "
        f"loss of a perfect model is {floor:.2f} (binary {binary_floor:.2f}), and a confident mistake pulls with "
        f"{wrong_pull:.0e} instead of {right_pull:.1f}",
        holds={
            "a perfect model's loss over 10 classes is 1.46, not 0": abs(floor - 1.46) < 0.005
            and lowest == 0,
            "a perfect binary loss is 0.31": abs(binary_floor - 0.31) < 0.005,
            "a confident mistake gets almost no gradient": wrong_pull < 1e-3 * right_pull,
            "no loss falls below the floor": min(wrong.losses) > floor,
            "the model is far behind": wrong.accuracy < right.accuracy - 0.1,
        },
        curves={"wrong": wrong.losses, "right": right.losses},
        axes=("update", "loss"),
    )


class _train:
    """Ten clusters that overlap a little."""

    def __init__(self, *, squash: bool) -> None:
        torch.manual_seed(0)
        centres = 1.2 * torch.randn(CLASSES, 16)
        target = torch.arange(CLASSES).repeat(40)
        x = centres[target] + torch.randn(len(target), 16)
        model = nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, CLASSES))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        self.losses: list[float] = []
        for _ in range(UPDATES):
            loss = F.cross_entropy(_output(model(x), squash), target)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            self.losses.append(loss.item())
        self.accuracy = (model(x).argmax(1) == target).float().mean().item()


def _perfect_model(*, squash: bool) -> float:
    """The loss of a model that is certain and right about every class."""
    certain = 1e4 * torch.eye(CLASSES)
    return F.cross_entropy(_output(certain, squash), torch.arange(CLASSES)).item()


def _pull_when_wrong(*, squash: bool) -> float:
    """The gradient at the right answer's logit while a wrong one leads by 20."""
    logits = torch.zeros(1, CLASSES)
    logits[0, 1] = 20.0
    logits.requires_grad_()
    F.cross_entropy(_output(logits, squash), torch.tensor([0])).backward()
    assert logits.grad is not None
    return logits.grad[0, 0].abs().item()


def _output(logits: Tensor, squash: bool) -> Tensor:
    return torch.softmax(logits, 1) if squash else logits
