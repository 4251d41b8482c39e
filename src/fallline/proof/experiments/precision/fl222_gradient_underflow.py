"""FL222: which gradients become zero in float16, by layer, with and without scaling; and zeros that are no underflow."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from fallline.proof.experiment import Measured, experiment
from fallline.proof.experiments.precision._small_gradients import (
    gradients_under_autocast,
    zero_share,
)

TINY = 3e-5  # factor of the loss
NORMAL = torch.finfo(torch.float16).smallest_normal


@experiment(
    "FL222",
    claim="Gradients that underflow float16 are zeros beside a crowd of values at its very bottom; in full precision they are not zero. A gradient that is sparse by nature has no such crowd.",
)
def gradient_underflow() -> Measured:
    wrong = gradients_under_autocast(torch.float16, factor=TINY)
    scaled = gradients_under_autocast(torch.float16, factor=TINY, scale=65536.0)
    bfloat16 = gradients_under_autocast(torch.bfloat16, factor=TINY)
    full = gradients_under_autocast(None, factor=TINY)
    sparse = [_embedding_gradient()]
    bits = torch.arange(1, 0x7C00, dtype=torch.int16).view(torch.float16)  # all above zero
    below = int((bits < NORMAL).sum())
    return Measured(
        sides={
            "wrong": {
                "zero gradients, percent": 100 * zero_share(wrong),
                "of the others at the bottom of float16, percent": 100 * _bottom_share(wrong),
            },
            "right": {
                "zero gradients, percent": 100 * zero_share(scaled),
                "zero gradients, percent, bfloat16": 100 * zero_share(bfloat16),
                "zero gradients, percent, float32": 100 * zero_share(full),
                "zero gradients, percent, an embedding": 100 * zero_share(sparse),
                "of the others at the bottom of float16, percent, an embedding": 100
                * _bottom_share(sparse),
            },
        },
        conclusion=f"{zero_share(wrong):.0%} of the gradients are zero in float16 and {_bottom_share(wrong):.0%} of the others are below 6e-5, where float16 has {below} of its {len(bits):,} positive numbers; "
        f"scaled, in bfloat16 and in float32 {zero_share(scaled):.0%} are zero; an embedding's gradient is {zero_share(sparse):.0%} zero with {_bottom_share(sparse):.0%} of the others there",
        holds={
            "a large share is zero": zero_share(wrong) > 0.1,
            "beside a crowd of tiny values": _bottom_share(wrong) > 0.5,
            "scaled, in bfloat16 and in float32 none is": max(
                map(zero_share, (scaled, bfloat16, full))
            )
            < 0.001,
            "float16 has few numbers below 6e-5": below / len(bits) < 0.05,
            "sparse gradients have zeros and no such crowd": zero_share(sparse) > 0.5
            and _bottom_share(sparse) < 0.1,
        },
        curves={
            "wrong": [100 * zero_share([g]) for g in wrong],
            "right": [100 * zero_share([g]) for g in scaled],
        },
        axes=("layer", "zero gradients, percent"),
        positions=range(1, len(wrong) + 1),
    )


def _bottom_share(gradients: list[Tensor]) -> float:
    """Of the values that are not zero, the share below float16's smallest normal number."""
    values = torch.cat([g.reshape(-1) for g in gradients]).abs()
    values = values[values > 0]
    return float((values < NORMAL).double().mean())


def _embedding_gradient() -> Tensor:
    """A batch reaches a few rows of the table; the others have no gradient."""
    torch.manual_seed(0)
    table = nn.Embedding(100, 16)
    table(torch.randint(100, (20,))).square().mean().backward()
    assert table.weight.grad is not None
    return table.weight.grad
