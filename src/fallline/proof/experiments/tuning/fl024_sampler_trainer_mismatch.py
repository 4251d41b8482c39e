"""FL024: the ratio before the first update."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from fallline.proof.experiment import Measured, experiment


@experiment(
    "FL024",
    claim="Before the first update every ratio is 1; dropout while scoring spreads the ratios so far that clipping at 0.2 cuts many of them.",
)
def sampler_trainer_mismatch() -> Measured:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Dropout(0.1), nn.Linear(64, 20))
    states = torch.randn(2048, 16)
    with torch.no_grad():
        model.eval()
        actions = torch.multinomial(model(states).softmax(-1), 1)
        old = _scored(model, states, actions)
        right = (_scored(model, states, actions) - old).exp()
        wrong = (_scored(model.train(), states, actions) - old).exp()
    sides = {
        name: {
            "least ratio": float(r.min()),
            "greatest ratio": float(r.max()),
            "share outside 0.8 to 1.2": _outside(r),
        }
        for name, r in (("wrong", wrong), ("right", right))
    }
    return Measured(
        sides=sides,
        conclusion=f"with the same weights and dropout of 0.1 the ratios go from {float(wrong.min()):.2f} to {float(wrong.max()):.2f}, {_outside(wrong):.0%} are clipped; without dropout all are 1",
        holds={
            "dropout: ratios spread": _outside(wrong) > 0.01,
            "without: all are 1": float((right - 1).abs().max()) < 1e-6,
        },
    )


def _scored(model: nn.Module, states: Tensor, actions: Tensor) -> Tensor:
    out: Tensor = model(states).log_softmax(-1).gather(1, actions)
    return out


def _outside(ratio: Tensor) -> float:
    return float(((ratio - 1).abs() > 0.2).double().mean())
