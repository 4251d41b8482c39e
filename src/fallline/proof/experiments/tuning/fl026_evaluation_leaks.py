"""FL026: labels that are pure chance, and an evaluation that praises the model."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fallline.proof.experiment import Measured, experiment


@experiment(
    "FL026",
    claim="On labels that are drawn by chance, an evaluation that shares its samples with training reports a high accuracy; a separate one reports chance.",
)
def evaluation_leaks() -> Measured:
    torch.manual_seed(0)
    x, y = torch.randn(256, 32), torch.randint(2, (256,))
    model = nn.Sequential(nn.Linear(32, 128), nn.ReLU(), nn.Linear(128, 2))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    for _ in range(150):
        loss = F.cross_entropy(model(x[:192]), y[:192])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    wrong, right = _accuracy(model, x[:64], y[:64]), _accuracy(model, x[192:], y[192:])
    return Measured(
        sides={"wrong": {"accuracy": wrong}, "right": {"accuracy": right}},
        conclusion=f"labels are chance; the leaking evaluation reports {wrong:.0%}, the separate one {right:.0%}",
        holds={
            "the leak looks perfect": wrong > 0.95,
            "the truth is chance": abs(right - 0.5) < 0.2,
        },
    )


def _accuracy(model: nn.Module, x: Tensor, y: Tensor) -> float:
    with torch.no_grad():
        return float((model(x).argmax(-1) == y).double().mean())
