"""FL407: the gradients of a checkpointed block with dropout, with and without its random state."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from fallline.proof.experiment import Measured, experiment

WIDTH = 64


@experiment(
    "FL407",
    claim="Recomputed without its random state, a block with dropout gives other gradients than the loss has; with it, the same bits.",
    taught="preserve_rng_state=False only saves a little time.",
)
def checkpoint_rng_dropped() -> Measured:
    plain = _gradient()
    wrong, right = _gradient(preserve=False), _gradient(preserve=True)
    return Measured(
        sides={
            "wrong": {"cosine to the gradient without checkpointing": _cosine(wrong, plain)},
            "right": {"cosine to the gradient without checkpointing": _cosine(right, plain)},
        },
        conclusion=f"without the random state the first layer's gradient has a cosine of {_cosine(wrong, plain):.2f} to the right one; with it, 1.00",
        holds={
            "with the random state, the same bits": torch.equal(right, plain),
            "without it, far from the right direction": _cosine(wrong, plain) < 0.9,
        },
    )


def _gradient(preserve: bool | None = None) -> Tensor:
    """Of the layer before the dropout; None: without checkpointing."""
    torch.manual_seed(0)
    block = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.ReLU(), nn.Dropout(0.5), nn.Linear(WIDTH, 1))
    x = torch.randn(32, WIDTH)
    if preserve is None:
        y = block(x)
    else:
        y = checkpoint(block, x, use_reentrant=False, preserve_rng_state=preserve)
    y.square().mean().backward()
    gradient = block[0].weight.grad
    assert isinstance(gradient, Tensor)
    return gradient


def _cosine(a: Tensor, b: Tensor) -> float:
    return nn.functional.cosine_similarity(a.flatten(), b.flatten(), dim=0).item()
