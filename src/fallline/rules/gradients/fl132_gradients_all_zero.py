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
    yields_to = (
        "FL105",
        "FL117",
        "FL136",
        "FL306",
        "FL126",
        "FL019",
        "FL022",
    )  # why nothing reaches them
    what = "All gradients of an optimizer are exactly zero, or missing, from the first update on."
    why = (
        "The loss does not depend on the parameters, so nothing is ever learned and nothing complains: cross-entropy over a single class is "
        "0 whatever the logit is, a loss behind `round()`, `sign()` or a saturated `clamp` has a derivative of 0, and a generator whose output was "
        "detached gets none from its own loss."
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
        """\
import torch

torch.manual_seed(0)
generator, critic = torch.nn.Linear(8, 8), torch.nn.Linear(8, 1)
for_generator = torch.optim.SGD(generator.parameters(), lr=0.01)
for_critic = torch.optim.SGD(critic.parameters(), lr=0.01)
for update in range(20):
    made = generator(torch.randn(16, 8)).detach()
    for_critic.zero_grad()
    critic(made).mean().backward()
    for_critic.step()
    for_generator.zero_grad()
    (-critic(made).mean()).backward()
    for_generator.step()  # FL132
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
    least_unreached = 10  # updates: a part's turn may come later

    def check_series(self, run: Any) -> Iterator[Finding]:
        for track in run.tracks:
            none = bool(track.samples) and all(map(_has_none, track.samples))
            norms = [sample.total_norm() for sample in track.samples]
            if len(norms) < self.least_samples or any(norm != 0.0 for norm in norms if not none):
                continue
            if any(row.skipped or row.scale is not None for row in track.rows):
                continue  # gradients that underflow under a loss scale have a rule of their own
            if none:
                yield from self._unreached(track)
                continue
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

    def _unreached(self, track: Any) -> Iterator[Finding]:
        """A loss was there for each update, and its backward went elsewhere; or there was none, and the weights stay as they are."""
        updates = track.rows[-1].index + 1
        if updates < self.least_unreached:
            return
        if all(row.loss is None for row in track.rows):
            if _stands_still(track):
                yield self._without_gradients(track)
            return
        if any(row.loss is None for row in track.rows):
            return
        yield self.finding(
            track.at,
            f"None of the parameters that this optimizer holds got a gradient, in any of the {updates} updates so far, so its steps change nothing. "
            "The backward before them does not reach these parameters: look for `detach()`, `.data` or `no_grad` between them and the loss.",
            step=updates - 1,
            samples=len(track.samples),
            threshold=0.0,
            optimizer=track.optimizer,
            rank=track.rank,
        )

    def _without_gradients(self, track: Any) -> Finding:
        updates = track.rows[-1].index + 1
        return self.finding(
            track.at,
            f"No parameter that this optimizer holds had a gradient in any of its {updates} steps so far, and none of them has moved. Nothing computes gradients "
            "for them, or `zero_grad()` comes between the gradients and the step: clear before they are computed, or after the step.",
            step=updates - 1,
            samples=len(track.samples),
            threshold=0.0,
            optimizer=track.optimizer,
            rank=track.rank,
        )


_WITH, _FROZEN = 1.0, 2.0


def _stands_still(track: Any) -> bool:
    """The norm of every weight is the same, to the last bit, in all samples: an optimizer that needs no gradients would move them."""
    first = list(track.samples[0].column("weight"))
    return any(size == size for size in first) and all(
        list(sample.column("weight")) == first
        for sample in track.samples
        if len(sample.column("weight")) == len(first)
    )


def _has_none(sample: Any) -> bool:
    """No parameter has a gradient, though some are to be trained."""
    states = set(sample.column("state"))
    return _WITH not in states and states != {_FROZEN}
