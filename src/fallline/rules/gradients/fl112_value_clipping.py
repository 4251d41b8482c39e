"""FL112: clip_grad_value_ bends the direction of the update."""

from __future__ import annotations

from collections.abc import Iterator

from fallline.events import Clip, Trace
from fallline.finding import Finding, Severity
from fallline.rule import Rule
from fallline.rules.gradients._specimens import SETUP

__all__ = ["ValueClipping"]


class ValueClipping(Rule):
    code = "FL112"
    name = "value-clipping"
    severity = Severity.INFO
    what = "Finds `clip_grad_value_`, which clips every gradient element separately."
    why = (
        "Cutting elements off changes the direction of the update; clipping by norm "
        "shortens it and keeps the direction. At the same limit, value clipping is also the looser of the two: it never leaves an element smaller than norm clipping does."
    )
    instead = "Unless element-wise limits are meant:\n\n```python\ntorch.nn.utils.clip_grad_norm_(model.parameters(), max_norm=1.0)\n```"
    facts = ("value-clipping-changes-direction", "value-against-norm-clipping")
    tokens = (b"clip",)

    def check(self, trace: Trace) -> Iterator[Finding]:
        for clip in trace.of(Clip).first_of_each():
            if clip.how == "value" and not clip.measures_only:
                yield self.finding(
                    clip,
                    "clip_grad_value_ clips each element separately, which changes the direction of the update. "
                    "Use clip_grad_norm_: it keeps the direction.",
                )

    wrong = (
        SETUP
        + """
for epoch in range(2):
    for x, y in loader:
        optimizer.zero_grad()
        loss_fn(model(x), y).backward()
        torch.nn.utils.clip_grad_value_(model.parameters(), 0.5)  # FL112
        optimizer.step()
""",
        SETUP
        + """
from torch.nn.utils import clip_grad_value_


def update(x, y):
    optimizer.zero_grad()
    loss_fn(model(x), y).backward()
    clip_grad_value_(model.parameters(), clip_value=1.0)  # FL112
    optimizer.step()


for epoch in range(2):
    for x, y in loader:
        update(x, y)
""",
    )
    right = (
        SETUP
        + """
for epoch in range(2):
    for x, y in loader:
        optimizer.zero_grad()
        loss_fn(model(x), y).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        optimizer.step()
""",
        # the weights of a Wasserstein critic are clamped, not its gradients
        SETUP
        + """
for epoch in range(2):
    for x, y in loader:
        optimizer.zero_grad()
        loss_fn(model(x), y).backward()
        optimizer.step()
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.clamp_(-0.1, 0.1)
""",
        # a bounded loss is not a clipped gradient
        SETUP
        + """
for epoch in range(2):
    for x, y in loader:
        optimizer.zero_grad()
        loss = loss_fn(model(x).clamp(-3, 3), y)
        loss.backward()
        optimizer.step()
""",
    )
