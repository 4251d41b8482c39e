"""FL016: padding in the sum, and padding in the divisor."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from fallline.proof.experiment import Measured, experiment
from fallline.proof.experiments.tuning._toy import PAD, Toy, sentences, train


@experiment(
    "FL016",
    claim="Padding in the loss makes the loss look smaller than that of the words; padding in the divisor makes the gradient smaller by the share of padding.",
)
def padding_supervised() -> Measured:
    ids = sentences(96, longest=20)
    share = float((ids[:, 1:] != PAD).double().mean())
    reported, real = _losses(ids)
    torch.manual_seed(0)
    model = Toy()
    ratio = _length(model, ids, by_all=True) / _length(model, ids, by_all=False)
    return Measured(
        sides={
            "wrong": {"loss of the same model": reported, "length of the gradient": ratio},
            "right": {"loss of the same model": real, "length of the gradient": 1.0},
        },
        conclusion=f"with {1 - share:.0%} padding the reported loss is {reported:.2f} and that of the words {real:.2f}; in the divisor the gradient is {ratio:.2f} of what it should be",
        holds={
            "the loss looks better than it is": reported < 0.8 * real,
            "the gradient shrinks by the share": abs(ratio - share) < 0.01,
        },
    )


def _losses(ids: Tensor) -> tuple[float, float]:
    torch.manual_seed(0)
    model = Toy()
    reported = train(model, ids, ids, updates=60)[-1]
    with torch.no_grad():
        logits = model(ids)[:, :-1]
    return reported, float(
        F.cross_entropy(
            logits.flatten(0, 1), ids[:, 1:].masked_fill(ids[:, 1:] == PAD, -100).flatten()
        )
    )


def _length(model: Toy, ids: Tensor, *, by_all: bool) -> float:
    each = F.cross_entropy(model(ids)[:, :-1].flatten(0, 1), ids[:, 1:].flatten(), reduction="none")
    mask = (ids[:, 1:] != PAD).flatten()
    loss = (each * mask).mean() if by_all else (each * mask).sum() / mask.sum()
    gradients = torch.autograd.grad(loss, list(model.parameters()))
    return float(torch.stack([g.norm() for g in gradients]).norm())
