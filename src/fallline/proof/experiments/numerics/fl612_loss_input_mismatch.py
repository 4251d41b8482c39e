"""FL612: nll_loss of raw logits, and a ReLU before cross_entropy."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fallline.proof.experiment import Measured, experiment

CLASSES, UPDATES = 10, 100
Loss = Callable[[Tensor, Tensor], Tensor]


@experiment(
    "FL612",
    claim="nll_loss of raw logits falls far below zero while the accuracy stays behind that of log-probabilities; "
    "with a ReLU before cross_entropy the accuracy is behind on average of five starts, because a class that has gone negative cannot come back.",
)
def loss_input_mismatch() -> Measured:
    wrong_loss, wrong = _train(F.nll_loss)
    right_loss, right = _train(lambda logits, y: F.nll_loss(F.log_softmax(logits, 1), y))
    cuts = [
        _train(lambda logits, y: F.cross_entropy(torch.relu(logits), y), cut=True, seed=s)[1]
        for s in range(5)
    ]
    cut = sum(cuts) / len(cuts)
    return Measured(
        sides={
            "wrong": {"loss after 100 updates": wrong_loss, "accuracy": wrong},
            "right": {"loss after 100 updates": right_loss, "accuracy": right},
            "ReLU before cross_entropy": {"accuracy": cut},
        },
        conclusion=f"nll_loss of logits reaches {wrong_loss:.0e} with an accuracy of {wrong:.0%}; of log-probabilities {right_loss:.2f} with "
        f"{right:.0%}. With a ReLU before cross_entropy it is {cut:.0%} on average of five starts, {min(cuts):.0%} to {max(cuts):.0%}",
        holds={
            "the loss of logits falls below zero": wrong_loss < -1,
            "its accuracy is behind": wrong < right - 0.05,
            "a ReLU before the loss is behind on average": cut < right - 0.05,
        },
    )


def _train(loss_of: Loss, *, cut: bool = False, seed: int = 0) -> tuple[float, float]:
    """The loss and the accuracy on ten clusters that overlap a little; `cut`: predictions are read after the ReLU too."""
    torch.manual_seed(seed)
    centres = 1.2 * torch.randn(CLASSES, 16)
    target = torch.arange(CLASSES).repeat(40)
    x = centres[target] + torch.randn(len(target), 16)
    model = nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, CLASSES))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    loss = torch.zeros(())
    for _ in range(UPDATES):
        loss = loss_of(model(x), target)
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
    logits = torch.relu(model(x)) if cut else model(x)
    return loss.item(), (logits.argmax(1) == target).float().mean().item()
