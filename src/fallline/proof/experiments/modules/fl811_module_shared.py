"""FL811: a stack whose places all hold one layer, beside one with a layer for each place."""

from __future__ import annotations

import torch
from torch import nn

from fallline.proof.experiment import Measured, experiment

DEPTH, WIDTH, SAMPLES, UPDATES = 4, 16, 64, 600


@experiment(
    "FL811",
    claim="`[layer] * n` has the weights of one layer, its gradient is the sum over the places, and it fits worse than n layers.",
)
def module_shared() -> Measured:
    (few, one, worse), (many, _, better) = _trained(shared=True), _trained(shared=False)
    weights, loss = "parameters", "loss after training"
    return Measured(
        sides={"wrong": {weights: few, loss: worse}, "right": {weights: many, loss: better}},
        conclusion=f"a stack of {DEPTH} has {few} parameters instead of {many}, and a loss of {worse:.2g} instead of {better:.2g} after {UPDATES} updates",
        holds={
            "the weights of one layer": many == DEPTH * few,
            "its gradient is the sum over the places": one,
            "it fits worse": worse > 1.5 * better,
        },
    )


def _trained(*, shared: bool) -> tuple[int, bool, float]:
    torch.manual_seed(0)
    x, target = torch.randn(SAMPLES, WIDTH), 1.6 * torch.rand(SAMPLES, WIDTH) - 0.8
    model = _stack(shared=shared)
    summed = _sums(model, x) if shared else False
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    for _ in range(UPDATES):
        loss = (model(x) - target).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return sum(p.numel() for p in model.parameters()), summed, float(loss.detach())


def _stack(*, shared: bool) -> nn.Sequential:
    def block() -> nn.Module:
        return nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh())

    return nn.Sequential(*([block()] * DEPTH if shared else [block() for _ in range(DEPTH)]))


def _sums(model: nn.Sequential, x: torch.Tensor) -> bool:
    """The gradient of the one layer is the sum of what its copies get, each in its own place."""
    copies = _stack(shared=False)
    for place, copy in zip(model, copies, strict=True):
        copy.load_state_dict(place.state_dict())
    for each in (model, copies):
        each(x).square().mean().backward()
    one = next(model.parameters()).grad
    parts = [next(copy.parameters()).grad for copy in copies]
    model.zero_grad()
    return one is not None and torch.allclose(
        one, torch.stack([p for p in parts if p is not None]).sum(0), atol=1e-6
    )
