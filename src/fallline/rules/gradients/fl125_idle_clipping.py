"""FL125: the clip threshold never binds."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

from fallline.finding import Finding, Severity
from fallline.rule import Rule
from fallline.rules._trends import median

__all__ = ["IdleClipping"]


class IdleClipping(Rule):
    code = "FL125"
    name = "idle-clipping"
    severity = Severity.INFO
    what = "Clipping ran on every update and never changed a gradient."
    why = "The threshold is far above what this run produces: it costs a pass over the gradients, and an outlier ten times too large would pass."
    instead = "Set `max_norm` to a few times the median norm in the evidence, or drop the clipping."
    facts = ("clip-is-two-passes", "clip-cost-against-tokens")
    wrong = (
        """\
import torch

torch.manual_seed(0)
model = torch.nn.Linear(8, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for update in range(240):
    inputs = torch.randn(64, 8)
    loss = torch.nn.functional.mse_loss(model(inputs), inputs[:, :1])
    optimizer.zero_grad()
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1000.0)
    optimizer.step()  # FL125
""",
    )
    right = (
        """\
import torch

torch.manual_seed(0)
model = torch.nn.Linear(8, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for update in range(240):
    inputs = torch.randn(64, 8)
    loss = torch.nn.functional.mse_loss(model(inputs), inputs[:, :1])
    optimizer.zero_grad()
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5)
    optimizer.step()
""",
    )

    least_updates = 200

    def check_series(self, run: Any) -> Iterator[Finding]:
        for track in run.tracks:
            measured = [
                (r.clip_norm, r.clip_threshold)
                for r in track.rows
                if r.clip_norm is not None and r.clip_threshold and math.isfinite(r.clip_threshold)
            ]
            if track.totals.get("clipped", 0) or len(measured) < self.least_updates:
                continue
            if any(not norm <= threshold for norm, threshold in measured):
                continue
            norms = [norm for norm, _ in measured]
            threshold = measured[-1][1]
            yield self.finding(
                track.at,
                f"Clipping had no effect in {len(measured)} updates: the largest norm, {max(norms):.3g}, is below the threshold {threshold:g}. Lower it to catch spikes, or remove the clip.",
                step=track.rows[-1].index,
                max_norm=threshold,
                largest_norm=max(norms),
                median_norm=median(norms),
                threshold=self.least_updates,
                optimizer=track.optimizer,
                rank=track.rank,
            )
