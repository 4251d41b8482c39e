"""FL128: four micro-batches against the big batch, for BatchNorm, GroupNorm and a contrastive loss."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, mse_loss, normalize

from fallline.proof.experiment import Measured, experiment
from fallline.proof.experiments._training import gradient, off

K = 4
Loss = Callable[[nn.Module, Tensor, Tensor], Tensor]


@experiment(
    "FL128",
    claim="With BatchNorm or a contrastive loss k micro-batches are not the big batch; for what looks at one sample at a time they are.",
    taught="Accumulation gives the same result as a big batch.",
)
def accumulation_batchnorm() -> Measured:
    batchnorm, counted = _off(nn.BatchNorm1d(16), _mse)
    shifted, _ = _off(nn.BatchNorm1d(16), _mse, shift=1.0)
    contrastive, _ = _off(nn.Identity(), _info_nce)
    groupnorm, _ = _off(nn.GroupNorm(4, 16), _mse)
    return Measured(
        sides={
            "wrong": {
                "what normalises": "BatchNorm",
                "gradient off by, percent": 100 * batchnorm,
                "gradient off by, percent, micro-batches that differ": 100 * shifted,
                "gradient off by, percent, InfoNCE": 100 * contrastive,
                "running statistics updated, times": counted,
            },
            "right": {"gradient off by, percent": 100 * groupnorm, "what normalises": "GroupNorm"},
        },
        conclusion=f"with k = {K} the gradient is {batchnorm:.0%} off the big batch's with BatchNorm, {shifted:.0%} where micro-batches differ, {contrastive:.0%} for InfoNCE, "
        f"and exact with GroupNorm; BatchNorm's running statistics are updated {counted} times",
        holds={
            "BatchNorm is off": batchnorm > 0.03,
            "more so where micro-batches differ": shifted > 1.5 * batchnorm,
            "a contrastive loss is off": contrastive > 0.03,
            "GroupNorm is exact": groupnorm < 1e-12,
            "running statistics are updated k times": counted == K,
        },
    )


def _off(norm: nn.Module, loss: Loss, *, shift: float = 0.0) -> tuple[float, int]:
    """How far the accumulated gradient is from the big batch's, and how often running statistics were updated."""
    torch.manual_seed(0)
    x, y = torch.randn(64, 8, dtype=torch.float64), torch.randn(64, 16, dtype=torch.float64)
    x += shift * torch.arange(K, dtype=torch.float64).repeat_interleave(64 // K)[:, None]
    gradients = []
    for pieces in (K, 1):
        torch.manual_seed(1)
        model = nn.Sequential(nn.Linear(8, 16), norm, nn.Tanh(), nn.Linear(16, 16)).double()
        for micro_x, micro_y in zip(x.chunk(pieces), y.chunk(pieces), strict=True):
            (loss(model, micro_x, micro_y) / pieces).backward()
        gradients.append(gradient(model))
        norm.zero_grad()
    counted = getattr(norm, "num_batches_tracked", None)
    return off(*gradients), 0 if counted is None else int(counted) - 1  # the big batch is one


def _mse(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    return mse_loss(model(x), y)


def _info_nce(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    """Each sample finds its own second view among all of the batch."""
    first, second = normalize(model(x)), normalize(model(x + 0.1 * y[:, :8]))
    return cross_entropy(first @ second.T / 0.1, torch.arange(len(x)))
