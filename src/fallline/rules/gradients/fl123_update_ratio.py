"""FL123: updates too large or too small for the weights they change, in a run whose loss does not fall."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

from fallline.finding import Finding, Severity
from fallline.rule import Rule
from fallline.rules._trends import median, progress, sensitivity, warming

__all__ = ["UpdateRatio"]


class UpdateRatio(Rule):
    code = "FL123"
    name = "update-ratio"
    severity = Severity.WARNING
    what = "The size of the updates over the size of the weights is outside its healthy band, and the loss has not improved."
    why = (
        "Updates of a tenth of the weights and more overwrite what was learned; updates below a millionth change nothing.\n"
        "About a thousandth is usual. A decayed or warming-up learning rate is small on purpose, and a falling loss is its own proof."
    )
    instead = "Lower or raise the learning rate by the factor that brings the ratio in the evidence near 1e-3."
    wrong = (
        """\
import torch

torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(8, 32), torch.nn.Tanh(), torch.nn.Linear(32, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=1e-8)
for update in range(80):
    inputs = torch.randn(64, 8)
    loss = torch.nn.functional.mse_loss(model(inputs), 3 * inputs[:, :1])
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()  # FL123
""",
    )
    right = (
        """\
import torch

torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(8, 32), torch.nn.Tanh(), torch.nn.Linear(32, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
for update in range(80):
    inputs = torch.randn(64, 8)
    loss = torch.nn.functional.mse_loss(model(inputs), 3 * inputs[:, :1])
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
""",
    )

    low = 1e-6
    high = 0.1
    least_updates = 50
    least_samples = 8
    share = 0.8  # of the recent samples
    improvement = 0.02  # a loss that fell by this share since the start is fine
    sensitivity = 0.01  # |gradient| * |weights| / |loss|: below, there is nothing left to learn

    def check_series(self, run: Any) -> Iterator[Finding]:
        for track in run.tracks:
            recent = [s for s in track.samples[-50:] if s.layout.id == track.samples[-1].layout.id]
            if (
                len(recent) < self.least_samples
                or recent[-1].index - recent[0].index < self.least_updates - 1
            ):
                continue
            trend = progress([loss for _, loss in track.losses()])
            if math.isnan(trend.before) or trend.fell(self.improvement):
                continue
            ratios = [r for r in map(_ratio, recent) if r is not None]
            if len(ratios) < self.least_samples:
                continue
            typical = median(ratios)
            if sum(r >= self.high for r in ratios) >= self.share * len(ratios):
                verdict, limit = "overwrite the weights", self.high
            elif (
                sum(r <= self.low for r in ratios) >= self.share * len(ratios)
                and not warming(track)
                and sensitivity(recent[-1], trend.after) >= self.sensitivity
            ):
                verdict, limit = "hardly move the weights", self.low
            else:
                continue
            yield self.finding(
                track.at,
                f"the updates {verdict}: their size is {typical:.2g} of the weights' (about 1e-3 is usual), and the loss has "
                f"not improved ({trend.before:.4g} → {trend.after:.4g})",
                step=recent[-1].index,
                ratio=typical,
                threshold=limit,
                lr=track.rows[-1].lr if track.rows else None,
                loss_before=trend.before,
                loss_after=trend.after,
                optimizer=track.optimizer,
                rank=track.rank,
            )


def _ratio(sample: Any) -> float | None:
    """The middle of the matrices' ratios: vectors start at zero and grow from there."""
    columns = zip(
        sample.layout.parameters, sample.column("ratio"), sample.column("norm"), strict=True
    )
    ratios = [r for p, r, norm in columns if len(p.shape) >= 2 and r == r and norm > 0]
    return median(ratios) if ratios else None
