"""FL211: gradients are read (norm, logged) while still scaled."""

from __future__ import annotations

from collections.abc import Iterator

from fallline.events import Clip, Event, GradRead, Trace, scales, still_scaled
from fallline.finding import Finding, Severity
from fallline.rule import Rule
from fallline.rules.precision._specimen import AMP


class InspectScaled(Rule):
    code = "FL211"
    name = "inspect-scaled"
    severity = Severity.WARNING
    what = """\
Gradients are measured or logged while they are still multiplied by the loss scale."""
    why = """\
The numbers are 65536 times (by default) too large, and jump by a factor of two whenever the scale changes.

Such a jump looks like an exploding gradient, and a threshold chosen from these numbers is wrong."""
    instead = """\
Unscale first; `scaler.step` will not do it again.

```python
scaler.scale(loss).backward()
scaler.unscale_(optimizer)
norm = torch.nn.utils.get_total_norm(p.grad for p in model.parameters())
scaler.step(optimizer)
```"""
    facts = ("amp-order", "loss-scale-schedule")

    def check(self, trace: Trace) -> Iterator[Finding]:
        for event, state in scales(trace):
            if _measures(event) and still_scaled(trace, event, state):
                yield self.finding(
                    event,
                    "Gradients are measured while they are still multiplied by the loss scale (65536 by default), so the number means nothing and jumps when "
                    "the scale changes. Call scaler.unscale_(optimizer) first.",
                )

    wrong = (
        AMP
        + """\
for inputs, targets in loader:
    optimizer.zero_grad()
    with torch.autocast("cpu", dtype=torch.float16):
        loss = loss_fn(model(inputs), targets)
    scaler.scale(loss).backward()
    norm = torch.stack([p.grad.norm() for p in model.parameters()]).norm()  # FL211
    scaler.step(optimizer)
    scaler.update()
""",
        # a clip with no limit only measures
        AMP
        + """\
for inputs, targets in loader:
    optimizer.zero_grad()
    with torch.autocast("cpu", dtype=torch.float16):
        loss = loss_fn(model(inputs), targets)
    scaler.scale(loss).backward()
    norm = torch.nn.utils.clip_grad_norm_(model.parameters(), float("inf"))  # FL211
    scaler.step(optimizer)
    scaler.update()
""",
    )
    right = (
        AMP
        + """\
for inputs, targets in loader:
    optimizer.zero_grad()
    with torch.autocast("cpu", dtype=torch.float16):
        loss = loss_fn(model(inputs), targets)
    scaler.scale(loss).backward()
    scaler.unscale_(optimizer)
    norm = torch.stack([p.grad.norm() for p in model.parameters()]).norm()
    scaler.step(optimizer)
    scaler.update()
""",
        # after the step they have been unscaled
        AMP
        + """\
for inputs, targets in loader:
    optimizer.zero_grad()
    with torch.autocast("cpu", dtype=torch.float16):
        loss = loss_fn(model(inputs), targets)
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
    print(model.weight.grad.norm())
""",
        # only asks whether they are finite: no scale changes that
        AMP
        + """\
for inputs, targets in loader:
    optimizer.zero_grad()
    with torch.autocast("cpu", dtype=torch.float16):
        loss = loss_fn(model(inputs), targets)
    scaler.scale(loss).backward()
    for parameter in model.parameters():
        if torch.isnan(parameter.grad).any() or not parameter.grad.isfinite().all():
            print("overflow")
    scaler.step(optimizer)
    scaler.update()
""",
        # only asks whether there is one
        AMP
        + """\
for inputs, targets in loader:
    optimizer.zero_grad()
    with torch.autocast("cpu", dtype=torch.float16):
        loss = loss_fn(model(inputs), targets)
    scaler.scale(loss).backward()
    unused = [name for name, p in model.named_parameters() if p.grad is None]
    scaler.step(optimizer)
    scaler.update()
""",
    )


def _measures(event: Event) -> bool:
    match event:
        case Clip(measures_only=True) | GradRead(what="norm" | "value"):
            return True
    return False
