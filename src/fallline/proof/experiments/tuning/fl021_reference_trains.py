"""FL021: a reference in train mode."""

from __future__ import annotations

import torch
from torch import nn

from fallline.proof.experiment import Measured, experiment


@experiment(
    "FL021",
    claim="A reference with active dropout differs from itself from call to call; in eval mode it does not.",
)
def reference_trains() -> Measured:
    torch.manual_seed(0)
    reference = nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Dropout(0.1), nn.Linear(64, 20))
    x = torch.randn(256, 16)
    wrong = _divergence(reference.train(), x)
    right = _divergence(reference.eval(), x)
    name = "KL divergence of the reference from itself"
    return Measured(
        sides={"wrong": {name: wrong}, "right": {name: right}},
        conclusion=f"with dropout of 0.1 the reference is {wrong:.4f} away from itself in two calls, in eval mode {right:g}",
        holds={"with dropout it differs": wrong > 1e-4, "in eval mode it does not": right == 0},
    )


def _divergence(model: nn.Module, x: torch.Tensor) -> float:
    with torch.no_grad():
        one, other = (model(x).log_softmax(-1) for _ in range(2))
    return float((one.exp() * (one - other)).sum(-1).mean())
