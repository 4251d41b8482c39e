"""FL221: the loss scale falls towards zero."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from fallline.finding import Finding, Severity
from fallline.rule import Rule

__all__ = ["ScaleCollapse"]


class ScaleCollapse(Rule):
    code = "FL221"
    name = "scale-collapse"
    severity = Severity.ERROR
    what = "The loss scale is halved again and again and falls towards zero."
    why = (
        "Every backward overflows at every scale, so no update is applied: the model does not train, and nothing says so. "
        "The cause is a NaN or Inf in the forward pass or in the loss, which no scale can remove."
    )
    instead = "Find where the NaN or Inf comes from (`fallline run` names the operation), or use bfloat16."
    wrong = (
        """\
import torch

torch.manual_seed(0)
model = torch.nn.Linear(8, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
scaler = torch.amp.GradScaler("cpu")
for update in range(60):
    inputs = torch.randn(16, 8)
    loss = torch.log(model(inputs).square() * 0).mean()
    optimizer.zero_grad()
    scaler.scale(loss).backward()
    scaler.step(optimizer)  # FL221
    scaler.update()
""",
    )
    right = (
        """\
import torch

torch.manual_seed(0)
model = torch.nn.Linear(8, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
scaler = torch.amp.GradScaler("cpu")
for update in range(60):
    inputs = torch.randn(16, 8)
    loss = torch.nn.functional.mse_loss(model(inputs), inputs[:, :1])
    optimizer.zero_grad()
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
""",
    )

    fall = 2.0**12  # from the highest scale of the run
    in_a_row = 12  # skipped updates without one applied
    bottom = 1.0  # a scale below one makes small gradients smaller

    def check_series(self, run: Any) -> Iterator[Finding]:
        for track in run.tracks:
            rows = [r for r in track.rows if r.scale is not None and r.scale > 0]
            highest, streak, lowest = 0.0, 0, None
            for row in rows:
                highest = max(highest, row.scale)
                streak = streak + 1 if row.skipped else 0
                collapsed = streak >= self.in_a_row or (row.skipped and row.scale < self.bottom)
                if collapsed and row.scale * self.fall <= highest:
                    lowest = row
            if lowest is not None:
                yield self.finding(
                    track.at,
                    f"The loss scale fell from {highest:g} to {lowest.scale:g} by update {lowest.index}: every backward overflows and "
                    "no update is applied. Find where the NaN or Inf comes from; no loss scale removes it.",
                    step=lowest.index,
                    scale=lowest.scale,
                    highest=highest,
                    threshold=self.fall,
                    optimizer=track.optimizer,
                    rank=track.rank,
                )
