"""FL207: float16 autocast with no loss scaling."""

from __future__ import annotations

from collections.abc import Iterator

from fallline.events import (
    Backward,
    GradWrite,
    Opaque,
    Scaler,
    Step,
    Trace,
    forwards_of,
    scaler_assumed,
)
from fallline.finding import Finding, Severity
from fallline.rule import Rule
from fallline.rules.precision._specimen import AMP


class ScalerMissing(Rule):
    code = "FL207"
    name = "scaler-missing"
    severity = Severity.WARNING
    what = """\
The forward pass runs under float16 autocast and the loss is not scaled before `backward()`.

float16 is the default of `torch.autocast("cuda")`."""
    why = """\
Gradients below about 3e-8 are zero in float16, and they vanish silently.

How much is lost depends on the size of the gradients; a scaler keeps them."""
    instead = """\
Scale the loss, or use bfloat16, which needs no scaling.

```python
scaler = torch.amp.GradScaler("cuda")
with torch.autocast("cuda", dtype=torch.float16):
    loss = loss_fn(model(inputs), targets)
scaler.scale(loss).backward()
scaler.step(optimizer)
scaler.update()
```"""
    facts = ("half-ranges", "fp16-needs-scaler-bf16-not")

    def check(self, trace: Trace) -> Iterator[Finding]:
        used = {b for update in trace.updates for b in update.of(Backward)}
        if trace.settings and any(o.enabled is False for o in trace.objects_of(Scaler)):
            return  # there is one, and a switch that may not go with the type turned it off
        for backward in trace.of(Backward):
            if (
                backward.scaled is not False
                or backward not in used
                or _handled(trace, backward)
                or scaler_assumed(trace, backward)
            ):
                continue
            half = [f for f in forwards_of(trace, backward) if f.autocast == "float16"]
            if half:
                yield self.finding(
                    backward.seen_from(half[0]),
                    "The forward pass runs under float16 autocast but the loss is not scaled, so gradients below 3e-8 become zero. "
                    "Use torch.amp.GradScaler, or dtype=torch.bfloat16.",
                )

    wrong = (
        AMP
        + """\
for inputs, targets in loader:
    optimizer.zero_grad()
    with torch.autocast("cpu", dtype=torch.float16):
        loss = loss_fn(model(inputs), targets)
    loss.backward()  # FL207
    optimizer.step()
""",
        AMP
        + """\
class Trainer:
    def __init__(self, model, optimizer):
        self.model = model
        self.optimizer = optimizer

    def loss(self, inputs, targets):
        with torch.amp.autocast("cpu", dtype=torch.half):
            return loss_fn(self.model(inputs), targets)

    def fit(self, loader):
        for inputs, targets in loader:
            self.optimizer.zero_grad()
            loss = self.loss(inputs, targets)
            loss.backward()  # FL207
            self.optimizer.step()


Trainer(model, optimizer).fit(loader)
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
    scaler.step(optimizer)
    scaler.update()
""",
        # bfloat16: also what autocast("cpu") means
        AMP
        + """\
for inputs, targets in loader:
    optimizer.zero_grad()
    with torch.autocast("cpu"):
        loss = loss_fn(model(inputs), targets)
    loss.backward()
    optimizer.step()
""",
        # a fixed scale, taken out by hand
        AMP
        + """\
for inputs, targets in loader:
    optimizer.zero_grad()
    with torch.autocast("cpu", dtype=torch.float16):
        loss = loss_fn(model(inputs), targets)
    (loss * 1024).backward()
    for parameter in model.parameters():
        parameter.grad.div_(1024)
    optimizer.step()
""",
        # only the evaluation runs in float16
        AMP
        + """\
for inputs, targets in loader:
    optimizer.zero_grad()
    loss = loss_fn(model(inputs), targets)
    loss.backward()
    optimizer.step()
model.eval()
with torch.no_grad(), torch.autocast("cpu", dtype=torch.float16):
    for inputs, targets in loader:
        model(inputs)
""",
    )


def _handled(trace: Trace, backward: Backward) -> bool:
    """A framework owns the protocol around this backward, or its gradients are changed by hand afterwards."""
    changed = trace.after(backward).until(Step, Backward).of(GradWrite, Opaque)
    return backward.normalised is not None or bool(changed)
