"""FL122: a branch that is detached, a layer that is never called, and units that died: what they get and what becomes of them."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.functional import mse_loss

from fallline.proof.experiment import Measured, experiment
from fallline.proof.experiments._training import flat

UPDATES = 60


@experiment(
    "FL122",
    claim="Parameters without a gradient, or with one of exactly zero, stay as they were initialised, whatever the rest of the model does.",
)
def dead_parameters() -> Measured:
    wrong, right = _Net(detach=True), _Net()
    uncalled, died = _Net(skip=True), _Net(bias=-100.0)
    wrong_losses, wrong_moved = _train(wrong)
    right_losses, right_moved = _train(right)
    _, uncalled_moved = _train(uncalled)
    _, died_moved = _train(died)
    died_gradient = died.branch.weight.grad
    return Measured(
        sides={
            "wrong": {
                "layer moved": wrong_moved,
                "layer moved, never called": uncalled_moved,
                "layer moved, dead ReLU units": died_moved,
                "loss after 60 updates": wrong_losses[-1],
            },
            "right": {"layer moved": right_moved, "loss after 60 updates": right_losses[-1]},
        },
        conclusion=f"behind a detach, never called or dead, a layer moves {max(wrong_moved, uncalled_moved, died_moved):g} in {UPDATES} updates, alive it moves {right_moved:.1f}; "
        f"the loss ends at {wrong_losses[-1]:.2f} behind the detach and at {right_losses[-1]:.2f} without it",
        holds={
            "behind a detach there is no gradient": wrong.branch.weight.grad is None,
            "never called there is no gradient": uncalled.branch.weight.grad is None,
            "dead units get exactly zero": died_gradient is not None
            and not died_gradient.any().item(),
            "none of them moves": max(wrong_moved, uncalled_moved, died_moved) == 0,
            "alive it learns": right_moved > 0.1 and right_losses[-1] < 0.5 * wrong_losses[-1],
        },
        curves={"wrong": wrong_losses, "right": right_losses},
        axes=("update", "loss"),
    )


class _Net(nn.Module):
    """A ReLU branch and a linear head over it."""

    def __init__(self, *, detach: bool = False, skip: bool = False, bias: float = 0.0) -> None:
        torch.manual_seed(0)
        super().__init__()
        self.branch, self.head = nn.Linear(8, 32), nn.Linear(32, 1)
        self.detach, self.skip = detach, skip
        nn.init.constant_(self.branch.bias, bias)

    def forward(self, x: Tensor) -> Tensor:
        hidden = x.repeat(1, 4) if self.skip else self.branch(x).relu()
        return self.head(hidden.detach() if self.detach else hidden)  # type: ignore[no-any-return]


def _train(model: _Net) -> tuple[list[float], float]:
    """Losses, and how far the branch moved."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    start = flat(model.branch.parameters())
    torch.manual_seed(1)
    x = torch.randn(128, 8)
    y = (x @ torch.randn(8, 1)).abs()
    losses = []
    for _ in range(UPDATES):
        optimizer.zero_grad()
        loss = mse_loss(model(x), y)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses, float((flat(model.branch.parameters()) - start).norm())
