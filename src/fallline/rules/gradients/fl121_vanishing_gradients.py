"""FL121: early layers get a thousandth of the gradient of late layers, and the loss does not fall."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

from fallline.finding import Finding, Severity
from fallline.rule import Rule
from fallline.rules._trends import median, progress

__all__ = ["VanishingGradients"]


class VanishingGradients(Rule):
    code = "FL121"
    name = "vanishing-gradients"
    severity = Severity.WARNING
    what = "The gradients of early layers are at least 1000 times smaller than those of late layers, and the loss has not improved."
    why = (
        "The early layers do not learn: each saturating layer on the way multiplies the gradient by less than one.\n"
        "Small gradients in a run whose loss falls are healthy and are not reported."
    )
    instead = "Use residual connections, normalisation, ReLU-like activations, or an initialisation that fits the activation."
    facts = ("vanishing-is-early-layers", "look-per-layer", "residuals-prevent-vanishing")
    wrong = (
        """\
import torch

torch.manual_seed(0)
layers = [torch.nn.Linear(16, 16)]
for _ in range(12):
    layers += [torch.nn.Sigmoid(), torch.nn.Linear(16, 16)]
model = torch.nn.Sequential(*layers, torch.nn.Sigmoid(), torch.nn.Linear(16, 2, bias=False))
optimizer = torch.optim.SGD(model.parameters(), lr=0.001)
inputs = torch.randn(64, 16)
targets = (inputs[:, 0] > 0).long()
for update in range(80):
    loss = torch.nn.functional.cross_entropy(model(inputs), targets)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()  # FL121
""",
    )
    right = (
        """\
import torch

torch.manual_seed(0)
layers = [torch.nn.Linear(16, 16)]
for _ in range(4):
    layers += [torch.nn.ReLU(), torch.nn.Linear(16, 16)]
model = torch.nn.Sequential(*layers, torch.nn.Linear(16, 2))
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
inputs = torch.randn(64, 16)
targets = (inputs[:, 0] > 0).long()
for update in range(80):
    loss = torch.nn.functional.cross_entropy(model(inputs), targets)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
""",
    )

    factor = 1000.0  # late over early
    least_updates = 50
    least_samples = 8
    least_layers = 4
    share = 0.8  # of the recent samples must show it
    improvement = 0.02  # a loss that fell by this share since the start is not stuck

    def check_series(self, run: Any) -> Iterator[Finding]:
        for track in run.tracks:
            recent = track.samples[-50:]
            if (
                len(recent) < self.least_samples
                or recent[-1].index - recent[0].index < self.least_updates - 1
            ):
                continue
            gaps = [gap for gap in map(self._gap, recent) if gap is not None]
            large = [gap for gap in gaps if gap[0] >= self.factor]
            if len(gaps) < self.least_samples or len(large) < self.share * len(recent):
                continue
            trend = progress([loss for _, loss in track.losses()])
            if math.isnan(trend.before) or trend.fell(self.improvement):
                continue
            ratio, early, late = sorted(large)[len(large) // 2]
            yield self.finding(
                track.at,
                f"Gradients vanish on the way back: '{early}' gets {ratio:.2g} times less than '{late}', "
                f"and the loss has not improved ({trend.before:.4g} → {trend.after:.4g}). Add residual connections or normalisation.",
                step=recent[-1].index,
                ratio=ratio,
                threshold=self.factor,
                early=early,
                late=late,
                loss_before=trend.before,
                loss_after=trend.after,
                optimizer=track.optimizer,
                rank=track.rank,
            )

    def _gap(self, sample: Any) -> tuple[float, str, str] | None:
        """How much larger the late gradients are than the early ones, per element; None when it cannot be said."""
        sizes: list[tuple[int, float, str]] = []
        columns = zip(
            sample.layout.parameters, sample.column("norm"), sample.column("zeros"), strict=True
        )
        for parameter, norm, zeros in columns:
            # sparse gradients (embeddings) and vectors say nothing about depth; exact zeros are FL122's
            if len(parameter.shape) >= 2 and norm > 0 and zeros < 0.9:
                sizes.append((parameter.depth, norm / parameter.count**0.5, parameter.name))
        if len(sizes) < self.least_layers:
            return None
        sizes.sort()
        third = max(1, len(sizes) // 3)
        early, late = sizes[:third], sizes[-third:]
        ratio = median([s for _, s, _ in late]) / median([s for _, s, _ in early])
        return ratio, early[0][2], late[-1][2]
