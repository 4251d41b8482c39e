"""FL124: nearly every update is clipped, so the threshold sets the step size."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

from fallline.events import scale_free
from fallline.finding import Finding, Severity
from fallline.rule import Rule
from fallline.rules._trends import median

__all__ = ["OverClipping"]


class OverClipping(Rule):
    code = "FL124"
    name = "over-clipping"
    severity = Severity.WARNING
    yields_to = ("FL201",)
    what = "Nearly every one of the recent updates was clipped."
    why = (
        "Every step then has the same size, threshold times learning rate: the threshold is the learning rate in disguise, and the "
        "length of the gradient, which should shrink as training converges, is thrown away.\n"
        "Adam and similar optimizers divide the length out anyway; for them this is only a note."
    )
    instead = "Raise `max_norm` to about the 90th percentile of the norms in the evidence, so that clipping catches outliers only."
    facts = ("over-clipping-by-optimizer", "threshold-from-quantiles")
    wrong = (
        """\
import torch

torch.manual_seed(0)
model = torch.nn.Linear(8, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for update in range(80):
    inputs = torch.randn(64, 8)
    loss = torch.nn.functional.mse_loss(model(inputs), 10 * inputs[:, :1])
    optimizer.zero_grad()
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 0.1)  # FL124
    optimizer.step()
""",
    )
    right = (
        """\
import torch

torch.manual_seed(0)
model = torch.nn.Linear(8, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for update in range(80):
    inputs = torch.randn(64, 8)
    loss = torch.nn.functional.mse_loss(model(inputs), 10 * inputs[:, :1])
    optimizer.zero_grad()
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 10.0)
    optimizer.step()
""",
    )

    least_updates = 50
    share = 0.95  # of the recent updates

    def check_series(self, run: Any) -> Iterator[Finding]:
        for track in run.tracks:
            recent = [
                (r.clip_norm, r.clip_threshold)
                for r in track.rows[-500:]
                if r.clip_norm is not None and r.clip_threshold and math.isfinite(r.clip_norm)
            ]
            if len(recent) < self.least_updates:
                continue
            clipped = sum(norm > threshold for norm, threshold in recent) / len(recent)
            if clipped < self.share:
                continue
            norms = [norm for norm, _ in recent]
            threshold = recent[-1][1]
            invariant = scale_free(track.type)
            yield self.finding(
                track.clip_at,
                f"{clipped:.0%} of the last {len(recent)} updates were clipped: the median norm {median(norms):.3g} is "
                f"{median(norms) / threshold:.3g} times the threshold {threshold:g}"
                + (
                    f" ({track.type} divides the length out)."
                    if invariant
                    else ", which now sets the step size. Raise it, so that only outliers are clipped."
                ),
                severity=Severity.INFO if invariant else None,
                step=track.rows[-1].index,
                clipped=clipped,
                threshold=self.share,
                max_norm=threshold,
                median_norm=median(norms),
                percentile_90=sorted(norms)[int(0.9 * len(norms))],
                optimizer=track.optimizer,
                optimizer_type=track.type,
                rank=track.rank,
            )
