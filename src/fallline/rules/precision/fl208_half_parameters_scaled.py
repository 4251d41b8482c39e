"""FL208: float16 parameters (model.half()) with GradScaler."""

from __future__ import annotations

from collections.abc import Iterator

from fallline.events import Backward, Trace, Unscale, scaler_assumed, touched_optimizers
from fallline.finding import Finding, Severity
from fallline.rule import Rule
from fallline.rules.precision._specimen import AMP

_TORCHS = frozenset(
    (
        "SGD",
        "Adam",
        "AdamW",
        "Adamax",
        "Adagrad",
        "Adadelta",
        "NAdam",
        "RAdam",
        "RMSprop",
        "Rprop",
        "ASGD",
    )
)


class HalfParametersScaled(Rule):
    code = "FL208"
    name = "half-parameters-scaled"
    severity = Severity.ERROR
    what = """\
The model's own parameters are float16 (`model.half()`) and the loss goes through a `GradScaler`."""
    why = """\
Gradients have the type of their parameters, and the scaler refuses to unscale float16 gradients: `ValueError: Attempting to unscale FP16 gradients.`

Also without a scaler, float16 parameters lose updates that are smaller than their own rounding."""
    instead = """\
Keep the parameters in float32 and let autocast choose the type of each operation.

```python
model = Net().to(device)          # not .half()
scaler = torch.amp.GradScaler("cuda")
with torch.autocast("cuda", dtype=torch.float16):
    loss = loss_fn(model(inputs), targets)
```"""

    def check(self, trace: Trace) -> Iterator[Finding]:
        unscaled = [o for o in touched_optimizers(trace) if _is_unscaled(trace, o)]
        for backward in trace.of(Backward):
            scaled = backward.scaled and not scaler_assumed(trace, backward)
            # master copies: the optimizer holds other parameters than the half ones
            stepped = any(trace.concerns(backward, o) for o in unscaled)
            if backward.half_parameters and scaled and stepped:
                yield self.finding(
                    backward,
                    "The loss is scaled but the model's parameters are float16 themselves, so the scaler raises ValueError when it unscales them. "
                    "Keep the parameters in float32 and use autocast.",
                )

    wrong = (
        AMP
        + """\
model.half()
for inputs, targets in loader:
    optimizer.zero_grad()
    loss = loss_fn(model(inputs.half()).float(), targets)
    scaler.scale(loss).backward()  # FL208
    scaler.step(optimizer)
    scaler.update()
""",
        """\
import torch

model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.ReLU(), torch.nn.Linear(8, 1)).to(torch.float16)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
scaler = torch.amp.GradScaler("cpu")
for inputs in torch.utils.data.DataLoader(torch.randn(64, 8), batch_size=16):
    optimizer.zero_grad()
    scaled = scaler.scale(model(inputs.half()).float().pow(2).mean())
    scaled.backward()  # FL208
    scaler.unscale_(optimizer)
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
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
        # the frozen teacher may be half
        AMP
        + """\
teacher = torch.nn.Linear(8, 2).half().eval()
for inputs, targets in loader:
    optimizer.zero_grad()
    with torch.no_grad():
        wanted = teacher(inputs.half()).float()
    with torch.autocast("cpu", dtype=torch.float16):
        loss = torch.nn.functional.mse_loss(model(inputs), wanted)
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
""",
        # bfloat16 parameters and no scaler
        AMP
        + """\
model.bfloat16()
for inputs, targets in loader:
    optimizer.zero_grad()
    loss = loss_fn(model(inputs.bfloat16()).float(), targets)
    loss.backward()
    optimizer.step()
""",
    )


def _is_unscaled(trace: Trace, optimizer: str | None) -> bool:
    """The scaler unscales what this optimizer steps: not for optimizers made for half parameters, which do it themselves."""
    asked = any(e.optimizer == optimizer for e in trace.of(Unscale))
    return asked or trace.type_of(optimizer) in _TORCHS
