"""FL207: float16 autocast with no loss scaling."""

from __future__ import annotations

from collections.abc import Iterator

from fallline.events import Kind, Scaler, Trace
from fallline.finding import Finding, Severity
from fallline.rule import Rule
from fallline.rules._places import seen_from
from fallline.rules.precision._scale import assumed, feeding, handled
from fallline.rules.precision._specimen import AMP


class ScalerMissing(Rule):
    code = "FL207"
    name = "scaler-missing"
    severity = Severity.WARNING
    what = """\
The forward pass runs under float16 autocast and the loss is not scaled before `backward()`.

float16 is what `torch.autocast("cuda")` uses unless told otherwise."""
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
        used = {id(b) for update in trace.updates for b in update.backwards}
        off = any(isinstance(o, Scaler) and o.enabled is False for o in trace.objects.values())
        if off and trace.settings:
            return  # there is one, and a switch that may not go with the type turned it off
        for event in trace.all(Kind.BACKWARD):
            if (
                event.fact("scaled") is not False
                or id(event) not in used
                or handled(trace, event)
                or assumed(trace, event)
            ):
                continue
            half = [f for f in feeding(trace, event) if f.fact("autocast") == "float16"]
            if half:
                yield self.finding(
                    seen_from(event, half[0]),
                    "The forward pass runs under float16 autocast but the loss is not scaled: gradients below 3e-8 become zero. "
                    "Use torch.amp.GradScaler, or dtype=torch.bfloat16",
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
