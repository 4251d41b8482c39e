"""FL812: a sine-cosine table that is a Parameter, after some training."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from fallline.proof.experiment import Measured, experiment

LENGTH, WIDTH, UPDATES = 16, 32, 200


@experiment(
    "FL812",
    claim="As a Parameter, a sine-cosine table moves with training and weight decay; with requires_grad=False not by a bit.",
)
def constant_trained() -> Measured:
    wrong, right = _moved(trained=True), _moved(trained=False)
    name = "distance of the table from the formula, relative"
    return Measured(
        sides={"wrong": {name: wrong}, "right": {name: right}},
        conclusion=f"after {UPDATES} updates of AdamW the table is {wrong:.0%} away from its formula, {right:.0%} with requires_grad=False",
        holds={"trained, it moves": wrong > 0.01, "fixed, it does not": right == 0},
    )


def _moved(*, trained: bool) -> float:
    torch.manual_seed(0)
    table = _sincos()
    positions = nn.Parameter(table.clone(), requires_grad=trained)
    head = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.ReLU(), nn.Linear(WIDTH, 1))
    parameters = [*head.parameters(), *([positions] if trained else [])]
    optimizer = torch.optim.AdamW(parameters, lr=1e-3, weight_decay=0.1)
    for _ in range(UPDATES):
        x = torch.randn(8, LENGTH, WIDTH)
        loss = (head(x + positions).squeeze(-1) - x.mean(-1).cumsum(1)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return float((positions - table).norm() / table.norm())


def _sincos() -> Tensor:
    angle = torch.arange(LENGTH)[:, None] / 10000 ** (torch.arange(0, WIDTH, 2) / WIDTH)
    return torch.cat([angle.sin(), angle.cos()], dim=1)
