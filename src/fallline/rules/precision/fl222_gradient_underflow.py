"""FL222: a large share of gradient values is zero in half precision but not in full."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from fallline.finding import Finding, Severity
from fallline.rule import Rule
from fallline.rules._trends import median

__all__ = ["GradientUnderflow"]


class GradientUnderflow(Rule):
    code = "FL222"
    name = "gradient-underflow"
    severity = Severity.WARNING
    what = "Many gradient values are zero, and many of the others lie at the very bottom of float16: they underflowed."
    why = (
        "float16 has no number between 0 and 6e-8, and few below 6e-5. Gradients that fall there become zero, and the layers behind "
        "them stop learning. A gradient that is sparse by nature has zeros but no crowd of tiny values beside them."
    )
    instead = "Scale the loss (`torch.amp.GradScaler`), raise its scale, or use bfloat16, which reaches as far down as float32."
    wrong = (
        """\
import torch

torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(32, 64), torch.nn.Tanh(), torch.nn.Linear(64, 1)).half()
optimizer = torch.optim.SGD(model.parameters(), lr=1e3)
for update in range(40):
    inputs = torch.randn(16, 32).half()
    loss = (model(inputs) - inputs[:, :1]).square().mean() * 1e-5
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()  # FL222
""",
    )
    right = (
        """\
import torch

torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(32, 64), torch.nn.Tanh(), torch.nn.Linear(64, 1)).bfloat16()
optimizer = torch.optim.SGD(model.parameters(), lr=1e3)
for update in range(40):
    inputs = torch.randn(16, 32).bfloat16()
    loss = (model(inputs) - inputs[:, :1]).square().mean() * 1e-5
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
""",
    )

    zeros = 0.1  # share of exact zeros
    tiny = 0.5  # share of subnormals among the values that are not zero
    least_samples = 5
    share = 0.8  # of the recent samples

    def check_series(self, run: Any) -> Iterator[Finding]:
        for track in run.tracks:
            recent = [m for m in map(self._measure, track.samples[-50:]) if m is not None]
            if len(recent) < self.least_samples:
                continue
            low = [m for m in recent if m[0] >= self.zeros and m[1] >= self.tiny]
            if len(low) < self.share * len(recent):
                continue
            zeros, tiny = median([z for z, _ in low]), median([t for _, t in low])
            yield self.finding(
                track.at,
                f"Gradients underflow in float16: {zeros:.0%} of the values are zero, and {tiny:.0%} of the others are below the "
                "smallest normal number. Scale the loss, or use bfloat16.",
                step=track.samples[-1].index,
                zeros=zeros,
                tiny=tiny,
                threshold={"zeros": self.zeros, "tiny": self.tiny},
                scale=track.rows[-1].scale if track.rows else None,
                optimizer=track.optimizer,
                rank=track.rank,
            )

    @staticmethod
    def _measure(sample: Any) -> tuple[float, float] | None:
        """Share of zeros and of tiny values over all matrices of one sample; None where float16 is not in play."""
        count = zeros = alive = tiny = 0.0
        columns = zip(
            sample.layout.parameters, sample.column("zeros"), sample.column("tiny"), strict=True
        )
        for parameter, zero, small in columns:
            if len(parameter.shape) >= 2 and zero == zero and small == small:
                count += parameter.count
                zeros += zero * parameter.count
                if zero < 1:  # a layer that is zero throughout says nothing about the values beside
                    alive += parameter.count
                    tiny += small * parameter.count
        return (zeros / count, tiny / alive) if alive else None
