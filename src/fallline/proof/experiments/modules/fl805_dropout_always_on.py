"""FL805: dropout that model.eval() does not reach."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fallline.proof.experiment import Measured, experiment

Drop = Callable[[Tensor, bool], Tensor]


@experiment(
    "FL805",
    claim="F.dropout without training=self.training, or an nn.Dropout made in forward, drops units in eval mode too: two "
    "evaluations of the same data differ, and the error is higher.",
)
def dropout_always_on() -> Measured:
    wrong = _evaluate(lambda x, training: F.dropout(x, 0.5))
    fresh = _evaluate(lambda x, training: nn.Dropout(0.5)(x))
    right = _evaluate(lambda x, training: F.dropout(x, 0.5, training=training))
    return Measured(
        sides={
            "wrong": {
                "difference between two evaluations": wrong.difference,
                "validation error": wrong.error,
                "difference, nn.Dropout made in forward": fresh.difference,
            },
            "right": {
                "difference between two evaluations": right.difference,
                "validation error": right.error,
            },
        },
        conclusion=f"the same trained weights have a validation error {wrong.error / right.error:.1f} times as high with dropout left on, and two "
        f"evaluations differ by up to {wrong.difference:.1f} instead of {right.difference:g}",
        holds={
            "two evaluations differ": min(wrong.difference, fresh.difference) > 0.01,
            "with training=self.training they do not": right.difference == 0,
            "the error is higher": min(wrong.error, fresh.error) > 1.2 * right.error,
        },
    )


class _Net(nn.Module):
    def __init__(self, drop: Drop) -> None:
        super().__init__()
        self.hidden, self.head, self.drop = nn.Linear(8, 64), nn.Linear(64, 1), drop

    def forward(self, x: Tensor) -> Tensor:
        output: Tensor = self.head(self.drop(torch.relu(self.hidden(x)), self.training))
        return output


class _evaluate:
    """Train 100 updates, then evaluate twice in eval mode. Training is the same in all cases."""

    def __init__(self, drop: Drop) -> None:
        torch.manual_seed(0)
        model = _Net(drop)
        x = torch.randn(512, 8)
        y = x @ torch.randn(8, 1)
        optimizer = torch.optim.Adam(model.parameters(), lr=0.02)
        for _ in range(100):
            loss = F.mse_loss(model(x[:256]), y[:256])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        model.eval()
        with torch.no_grad():
            first, second = model(x[256:]), model(x[256:])
        self.error = F.mse_loss(first, y[256:]).item()
        self.difference = (first - second).abs().max().item()
