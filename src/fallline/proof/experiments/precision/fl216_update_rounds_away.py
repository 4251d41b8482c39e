"""FL216: AdamW with a small learning rate on parameters in bfloat16 and in float32."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn.functional import mse_loss

from fallline.proof.experiment import Measured, experiment

UPDATES = 300


@experiment(
    "FL216",
    claim="With a learning rate of 1e-5 most bfloat16 parameters do not change at all, and norm weights, which start at 1, never do; the same model in float32 learns.",
)
def update_rounds_away() -> Measured:
    wrong, right = _train(torch.bfloat16), _train(torch.float32)
    small, one = _distances(0.02), _distances(1.0)
    return Measured(
        sides={
            "wrong": {
                "weights that changed, percent": wrong[0],
                "norm weights that changed": wrong[1],
                "loss fell by, percent": wrong[2],
                "distance of neighbours near 0.02": small[0],
                "distance of neighbours near 1": one[0],
            },
            "right": {
                "weights that changed, percent": right[0],
                "norm weights that changed": right[1],
                "loss fell by, percent": right[2],
                "distance of neighbours near 0.02": small[1],
                "distance of neighbours near 1": one[1],
            },
        },
        conclusion=f"after {UPDATES} updates {wrong[0]:.0f} % of the bfloat16 weights and {wrong[1]} of 64 norm weights have changed, in float32 {right[0]:.0f} % and {right[1]}; "
        f"the loss fell by {wrong[2]:.1f} % and by {right[2]:.1f} %; "
        f"neighbours in bfloat16 are {small[0]:.1e} apart near 0.02 and {one[0]:.1e} near 1",
        holds={
            "most weights stay": wrong[0] < 50,
            "norm weights never move": wrong[1] == 0,
            "in float32 all move": right[0] > 99 and right[1] == 64,
            "float32 learns more": right[2] > 1.5 * wrong[2],
        },
    )


def _distances(value: float) -> tuple[float, float]:
    """From this number to the next one, in bfloat16 and in float32."""
    found = []
    for dtype in (torch.bfloat16, torch.float32):
        here = torch.tensor(value, dtype=dtype)
        found.append(float(torch.nextafter(here, torch.tensor(2.0, dtype=dtype)) - here))
    return found[0], found[1]


def _train(dtype: torch.dtype) -> tuple[float, int, float]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(256, 64), nn.LayerNorm(64), nn.Linear(64, 1)).to(dtype)
    start = [p.detach().clone() for p in model.parameters()]
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5, weight_decay=0.0)
    inputs = torch.randn(256, 256)
    targets = inputs[:, :1] + inputs[:, 1:2]
    losses = []
    for _ in range(UPDATES):
        loss = mse_loss(model(inputs.to(dtype)).float(), targets)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    changed = [(now.detach() != was) for now, was in zip(model.parameters(), start, strict=True)]
    return (
        100 * changed[0].float().mean().item(),
        int(changed[2].sum()),
        100 * (1 - losses[-1] / losses[0]),
    )
