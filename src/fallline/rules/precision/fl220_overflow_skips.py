"""FL220: the scaler skips far more updates than its growth probing explains."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import Any

from fallline.finding import Finding, Severity
from fallline.rule import Rule

__all__ = ["OverflowSkips"]


class OverflowSkips(Rule):
    code = "FL220"
    name = "overflow-skips"
    severity = Severity.WARNING
    what = "GradScaler skips many more updates than its search for a scale explains."
    why = (
        "Each skipped update is a batch thrown away. A few at the start, and one after each growth of the scale, are how the scaler "
        "finds its level; more than that means that something overflows in float16 at any scale."
    )
    instead = "Use bfloat16, or find the operation that overflows (`fallline measure precision`) and run it in float32."
    wrong = (
        """\
import torch

torch.manual_seed(0)
model = torch.nn.Linear(8, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
for update in range(100):
    inputs = torch.randn(16, 8)
    if update % 5 == 4:
        inputs[0, 0] = 3e38
    loss = torch.nn.functional.mse_loss(model(inputs), inputs[:, 1:2])
    optimizer.zero_grad()
    scaler.scale(loss).backward()
    scaler.step(optimizer)  # FL220
    scaler.update(1024.0)
""",
    )
    right = (
        """\
import torch

torch.manual_seed(0)
model = torch.nn.Linear(8, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
for update in range(100):
    inputs = torch.randn(16, 8)
    loss = torch.nn.functional.mse_loss(model(inputs), inputs[:, 1:2])
    optimizer.zero_grad()
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
""",
    )

    rate = 0.05  # unexplained skips per update
    least_skips = 5
    least_updates = 30
    calibrated = 2  # applied updates in a row that end the search for the first scale

    def check_series(self, run: Any) -> Iterator[Finding]:
        for track in run.tracks:
            rows = [r for r in track.rows if r.scale is not None]
            rows = rows[self._search(rows) :]
            skips = sum(r.skipped for r in rows)
            growths = sum(b.scale > a.scale for a, b in pairwise(rows))
            unexplained = skips - growths
            if len(rows) < self.least_updates or unexplained < max(
                self.least_skips, self.rate * len(rows)
            ):
                continue
            yield self.finding(
                track.at,
                f"The scaler skipped {skips} of {len(rows)} updates; growing its scale explains {growths} of them. "
                "Find the operation that overflows, or use bfloat16.",
                step=rows[-1].index,
                skipped=skips,
                explained=growths,
                updates=len(rows),
                rate=unexplained / len(rows),
                threshold=self.rate,
                scale=rows[-1].scale,
                optimizer=track.optimizer,
                rank=track.rank,
            )

    def _search(self, rows: list[Any]) -> int:
        """How many rows the scaler needed to find its first scale."""
        applied = 0
        for number, row in enumerate(rows):
            applied = 0 if row.skipped else applied + 1
            if applied == self.calibrated:
                return number + 1
        return len(rows)
