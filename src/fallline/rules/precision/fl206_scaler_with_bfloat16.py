"""FL206: loss scaling with bfloat16 autocast is not needed."""

from __future__ import annotations

from collections.abc import Iterator

from fallline.events import Backward, Trace, forwards_of, scaler_assumed
from fallline.finding import Finding, Severity
from fallline.rule import Rule
from fallline.rules.precision._specimen import AMP


class ScalerWithBfloat16(Rule):
    code = "FL206"
    name = "scaler-with-bfloat16"
    severity = Severity.INFO
    what = """\
The loss is scaled although autocast runs in bfloat16.

`torch.autocast("cpu")` is bfloat16 by default."""
    why = """\
bfloat16 has the range of float32, so small gradients do not vanish in it and scaling gains nothing.

The scaler still costs a pass over all gradients and a wait for the device in every step, and one more thing to save in a checkpoint."""
    instead = """\
Remove the scaler, or turn it off where the type is an option.

```python
scaler = torch.amp.GradScaler("cuda", enabled=dtype == torch.float16)
```"""
    facts = ("bf16-range-is-fp32", "fp16-needs-scaler-bf16-not")

    def check(self, trace: Trace) -> Iterator[Finding]:
        for backward in trace.of(Backward):
            if backward.scaled is True and not scaler_assumed(trace, backward):
                types = {f.autocast for f in forwards_of(trace, backward)} - {"off"}
                if types == {"bfloat16"}:
                    yield self.finding(
                        backward,
                        "The loss is scaled although the forward pass runs in bfloat16, which has float32's range and needs no loss scaling. "
                        "Remove the GradScaler, or make it with enabled=False.",
                    )

    wrong = (
        AMP
        + """\
for inputs, targets in loader:
    optimizer.zero_grad()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        loss = loss_fn(model(inputs), targets)
    scaler.scale(loss).backward()  # FL206
    scaler.step(optimizer)
    scaler.update()
""",
        AMP
        + """\
for inputs, targets in loader:
    optimizer.zero_grad()
    with torch.autocast("cpu"):
        loss = loss_fn(model(inputs), targets)
    loss = scaler.scale(loss)
    loss.backward()  # FL206
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
    scaler.step(optimizer)
    scaler.update()
""",
        # nanoGPT: the scaler is on only for float16
        AMP
        + """\
dtype = "bfloat16"
ptdtype = {"bfloat16": torch.bfloat16, "float16": torch.float16}[dtype]
scaler = torch.amp.GradScaler("cpu", enabled=(dtype == "float16"))
for inputs, targets in loader:
    optimizer.zero_grad()
    with torch.autocast("cpu", dtype=ptdtype):
        loss = loss_fn(model(inputs), targets)
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
""",
        AMP
        + """\
for inputs, targets in loader:
    optimizer.zero_grad()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        loss = loss_fn(model(inputs), targets)
    loss.backward()
    optimizer.step()
""",
    )
