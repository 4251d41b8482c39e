"""FL406: BatchNorm inside a checkpointed block sees every batch twice."""

from __future__ import annotations

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from fallline.proof.experiment import Measured, experiment

MOMENTUM = 0.1


@experiment(
    "FL406",
    claim="Checkpointing updates BatchNorm's running statistics twice for one batch; gradients stay right, and "
    "momentum = 1 - sqrt(1 - momentum) makes up for it.",
    taught="Checkpointing is compatible with BatchNorm.",
)
def checkpoint_batchnorm() -> Measured:
    wrong, right = _train(checkpointed=True), _train(checkpointed=False)
    adjusted = _train(checkpointed=True, momentum=1 - (1 - MOMENTUM) ** 0.5)
    moved = wrong.first_move / right.first_move
    return Measured(
        sides={
            "wrong": {
                "num_batches_tracked after one batch": wrong.tracked,
                "running mean after one batch": wrong.first_move,
            },
            "right": {
                "num_batches_tracked after one batch": right.tracked,
                "running mean after one batch": right.first_move,
            },
            "adjusted momentum": {
                "num_batches_tracked after one batch": adjusted.tracked,
                "running mean after one batch": adjusted.first_move,
            },
        },
        conclusion=f"one batch counts as {wrong.tracked} under checkpointing and moves the running mean "
        f"{moved:.2f} times as far",
        holds={
            "the batch is counted twice": (wrong.tracked, right.tracked) == (2, 1),
            "the running mean moves 1.9 times as far (2 - momentum)": abs(moved - 1.9) < 0.01,
            "the gradients are the same": torch.equal(wrong.gradient, right.gradient),
            "the adjusted momentum gives the plain running mean": abs(
                adjusted.first_move / right.first_move - 1
            )
            < 1e-4,
        },
        curves={"wrong": wrong.means, "right": right.means},
        axes=("batch", "running mean (the data's mean is 3)"),
    )


class _train:
    """30 batches of mean 3 through a BatchNorm that starts at 0."""

    def __init__(self, *, checkpointed: bool, momentum: float = MOMENTUM) -> None:
        torch.manual_seed(0)
        norm = nn.BatchNorm1d(4, momentum=momentum)
        linear = nn.Linear(4, 4)
        block = nn.Sequential(norm, linear)
        self.means: list[float] = []
        for batch in 3 + torch.randn(30, 16, 4):
            x = batch.requires_grad_()
            y = checkpoint(block, x, use_reentrant=False) if checkpointed else block(x)
            y.square().mean().backward()
            assert norm.running_mean is not None and norm.num_batches_tracked is not None
            assert linear.weight.grad is not None
            if not self.means:
                self.tracked = int(norm.num_batches_tracked)
                self.gradient = linear.weight.grad.clone()
            self.means.append(norm.running_mean.mean().item())
        self.first_move = self.means[0]
