"""FL132: every gradient is exactly zero, update after update."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from fallline.finding import Finding, Severity
from fallline.rule import Rule

__all__ = ["GradientsAllZero"]


class GradientsAllZero(Rule):
    code = "FL132"
    name = "gradients-all-zero"
    severity = Severity.ERROR
    what = "All gradients of an optimizer are exactly zero from the first update on, although backward reaches its parameters."
    why = (
        "The loss does not depend on the parameters, so nothing is ever learned and nothing complains: cross-entropy over a single class is "
        "0 whatever the logit is, a loss behind `round()`, `sign()` or a saturated `clamp` has a derivative of 0."
    )
    instead = (
        "Change the loss so that it depends on the output. For a model with one output use the loss for two classes:\n\n"
        "```python\nloss = torch.nn.functional.binary_cross_entropy_with_logits(logits, targets)\n```"
    )
    wrong = (
        """\
import torch

torch.manual_seed(0)
model = torch.nn.Linear(8, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for update in range(20):
    logits = model(torch.randn(16, 8))
    loss = torch.nn.functional.cross_entropy(logits, torch.zeros(16, dtype=torch.long))
    optimizer.zero_grad()
    loss.backward()  # FL132
    optimizer.step()
""",
        """\
import torch

torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Tanh(), torch.nn.Linear(8, 1))
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
for update in range(20):
    inputs = torch.randn(16, 8)
    right = (model(inputs).sigmoid().round() - (inputs[:, :1] > 0).float()).abs()
    optimizer.zero_grad()
    right.mean().backward()  # FL132
    optimizer.step()
""",
    )
    right = (
        """\
import torch

torch.manual_seed(0)
model = torch.nn.Linear(8, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for update in range(20):
    inputs = torch.randn(16, 8)
    targets = (inputs[:, :1] > 0).float()
    loss = torch.nn.functional.binary_cross_entropy_with_logits(model(inputs), targets)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
""",
        # a hinge loss that everything has satisfied: it has learned before
        """\
import torch

torch.manual_seed(0)
model = torch.nn.Linear(8, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
inputs = torch.randn(16, 8)
targets = torch.sign(inputs[:, :1])
for update in range(200):
    loss = torch.relu(1 - targets * model(inputs)).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
""",
    )

    least_samples = 4

    def check_series(self, run: Any) -> Iterator[Finding]:
        for track in run.tracks:
            norms = [sample.total_norm() for sample in track.samples]
            if len(norms) < self.least_samples or any(norm != 0.0 for norm in norms):
                continue
            if any(row.skipped or row.scale is not None for row in track.rows):
                continue  # gradients that underflow under a loss scale have a rule of their own
            updates = track.rows[-1].index + 1
            yield self.finding(
                track.loss_at,
                f"Every gradient of this loss is exactly zero, in all of the {updates} updates so far, so the model cannot learn. The loss "
                "does not depend on the model's output: look for cross-entropy over a single class, `round()`, `sign()` or a clamp that "
                "cuts everything off.",
                step=track.rows[-1].index,
                loss=track.rows[-1].loss,
                samples=len(norms),
                threshold=0.0,
                optimizer=track.optimizer,
                rank=track.rank,
            )
