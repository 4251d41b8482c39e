"""FL140: which parameters weight decay reaches when norms are left out by the name LayerNorm.weight, and by their shape."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from fallline.proof.experiment import Measured, experiment

UPDATES = 200


@experiment(
    "FL140",
    claim="Leaving norms out of weight decay by the name LayerNorm.weight leaves out none in a model that calls them ln_1: they are all decayed.",
)
def decay_by_name() -> Measured:
    wrong, right = _train(by_name=True), _train(by_name=False)
    return Measured(
        sides={
            "wrong": {
                "norm weights that are decayed": wrong[0],
                "their mean after training": wrong[1],
            },
            "right": {
                "norm weights that are decayed": right[0],
                "their mean after training": right[1],
            },
        },
        conclusion=f"by name {wrong[0]} of 4 norm weights are decayed, by shape {right[0]}; after {UPDATES} updates their mean is {wrong[1]:.2f} and {right[1]:.2f}",
        holds={
            "no name matches": wrong[0] == 4,
            "by shape all are left out": right[0] == 0,
            "decay has pulled them down": wrong[1] < right[1] - 0.05,
        },
    )


class _Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.ln_1, self.ln_2 = nn.LayerNorm(16), nn.LayerNorm(16)
        self.linear = nn.Linear(16, 16)

    def forward(self, x: Tensor) -> Tensor:
        mixed: Tensor = self.ln_2(x + self.linear(self.ln_1(x)).relu())
        return mixed


def _train(*, by_name: bool) -> tuple[int, float]:
    torch.manual_seed(0)
    model = nn.Sequential(_Block(), _Block(), nn.Linear(16, 1))
    named = dict(model.named_parameters())
    free = [
        n
        for n, p in named.items()
        if (any(w in n for w in ("bias", "LayerNorm.weight")) if by_name else p.ndim < 2)
    ]
    groups = [
        {"params": [p for n, p in named.items() if n not in free], "weight_decay": 0.1},
        {"params": [p for n, p in named.items() if n in free], "weight_decay": 0.0},
    ]
    optimizer = torch.optim.AdamW(groups, lr=1e-2)
    for _ in range(UPDATES):
        inputs = torch.randn(32, 16)
        loss = (model(inputs).squeeze(1) - inputs[:, 0]).pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    norms = [n for n in named if "ln_" in n and n.endswith("weight")]
    mean = torch.cat([named[n].detach() for n in norms]).mean().item()
    return sum(n not in free for n in norms), mean
