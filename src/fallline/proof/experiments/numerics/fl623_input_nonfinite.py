"""FL623: one NaN in one row of the data."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor, nn

from fallline.proof.experiment import Measured, experiment
from fallline.proof.experiments.numerics._at import nonfinite, words

BATCH = 64
Treat = Callable[[Tensor], tuple[Tensor, Tensor]]  # the inputs, and which samples count


@experiment(
    "FL623",
    claim="One NaN in one row makes the loss of its batch and every weight NaN after a step, a linear model or a deep one, with SGD or AdamW; multiplying "
    "it away with a mask does not help, replacing it before the forward pass does.",
)
def input_nonfinite() -> Measured:
    wrong_loss, wrong = _one_update(_as_it_is)
    masked_loss, masked = _one_update(_masked_after)
    right_loss, right = _one_update(_replaced_before)
    changed = [
        _one_update(_as_it_is, model, optimizer)[1]
        for model in (_linear, _deep)
        for optimizer in (torch.optim.SGD, torch.optim.AdamW)
    ]
    return Measured(
        sides={
            "wrong": {"loss of the batch": words(wrong_loss), "share of NaN weights": wrong},
            "right": {"loss of the batch": right_loss, "share of NaN weights": right},
            "masked after the forward pass": {
                "loss of the batch": words(masked_loss),
                "share of NaN weights": masked,
            },
        },
        conclusion=f"one NaN among {BATCH} rows makes the loss {wrong_loss} and {wrong:.0%} of the weights after one step; masked out "
        f"afterwards still {masked:.0%}, replaced before the forward pass {right:.0%}",
        holds={
            "the loss of the whole batch is NaN": math.isnan(wrong_loss),
            "every weight is NaN after one step": wrong == 1,
            "no other model or optimizer helps": min(changed) == 1,
            "0 times NaN is NaN: a mask afterwards does not help": masked == 1,
            "replaced before, nothing is lost": right == 0 and math.isfinite(right_loss),
        },
    )


def _as_it_is(x: Tensor) -> tuple[Tensor, Tensor]:
    return x, torch.ones(len(x), 1)


def _masked_after(x: Tensor) -> tuple[Tensor, Tensor]:
    return x, x.isfinite().all(1, keepdim=True).float()


def _replaced_before(x: Tensor) -> tuple[Tensor, Tensor]:
    return torch.where(x.isfinite(), x, 0.0), x.isfinite().all(1, keepdim=True).float()


def _linear() -> nn.Module:
    return nn.Linear(8, 1)


def _deep() -> nn.Module:
    return nn.Sequential(nn.Linear(8, 16), nn.LayerNorm(16), nn.GELU(), nn.Linear(16, 1))


def _one_update(
    treat: Treat,
    model_of: Callable[[], nn.Module] = _deep,
    optimizer_class: Callable[..., torch.optim.Optimizer] = torch.optim.SGD,
) -> tuple[float, float]:
    """The loss of a batch with one NaN, and the share of the weights that are NaN after its step."""
    torch.manual_seed(0)
    model = model_of()
    optimizer = optimizer_class(model.parameters(), lr=0.01)
    data, target = torch.randn(BATCH, 8), torch.randn(BATCH, 1)
    data[17, 3] = float("nan")
    x, counts = treat(data)
    loss = ((model(x) - target) ** 2 * counts).sum() / counts.sum()
    loss.backward()
    optimizer.step()
    return loss.item(), nonfinite(model.parameters()) / sum(p.numel() for p in model.parameters())
