"""FL214: the scheduler advances although the scaler skipped the step."""

from __future__ import annotations

from collections.abc import Iterator

from fallline.events import Backward, SchedulerStep, Step, Trace, scaler_on
from fallline.finding import Finding, Severity
from fallline.rule import Rule
from fallline.rules.precision._specimen import AMP


class SchedulerIgnoresSkip(Rule):
    code = "FL214"
    name = "scheduler-ignores-skip"
    severity = Severity.INFO
    what = """\
A scheduler that advances with every step also advances when the scaler has skipped the step."""
    why = """\
The learning rate then runs ahead of the updates that were really made: after one skip, four updates have the learning rate of five.

torch warns only when the very first step is skipped, and never with a fused optimizer."""
    instead = """\
Advance the scheduler only when the scale has not fallen.

```python
before = scaler.get_scale()
scaler.step(optimizer)
scaler.update()
if scaler.get_scale() >= before:
    scheduler.step()
```"""
    facts = ("scheduler-and-skipped-steps",)

    def check(self, trace: Trace) -> Iterator[Finding]:
        step: Step | None = None
        for event in trace.of(Step, Backward, SchedulerStep):
            match event:
                case Backward():
                    step = None
                case Step():
                    step = event if event.via == "scaler" and scaler_on(trace, event) else None
                case SchedulerStep() if step is not None and _ignores(event, step, trace.live):
                    yield self.finding(
                        event,
                        "The scheduler advances even when the scaler skips the step, so the learning rate runs ahead of the updates. "
                        "Call scheduler.step() only when scaler.get_scale() has not fallen.",
                    )

    wrong = (
        AMP
        + """\
scheduler = torch.optim.lr_scheduler.LinearLR(optimizer, total_iters=8)
scaler = torch.amp.GradScaler("cpu", init_scale=2.0**20)  # overflows at first: steps are skipped
for inputs, targets in loader:
    optimizer.zero_grad()
    with torch.autocast("cpu", dtype=torch.float16):
        loss = loss_fn(model(inputs), targets)
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
    scheduler.step()  # FL214
""",
    )
    right = (
        AMP
        + """\
scheduler = torch.optim.lr_scheduler.LinearLR(optimizer, total_iters=8)
for inputs, targets in loader:
    optimizer.zero_grad()
    with torch.autocast("cpu", dtype=torch.float16):
        loss = loss_fn(model(inputs), targets)
    scaler.scale(loss).backward()
    before = scaler.get_scale()
    scaler.step(optimizer)
    scaler.update()
    if scaler.get_scale() >= before:
        scheduler.step()
""",
        # once an epoch, a skip does not matter
        AMP
        + """\
scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=1)
for epoch in range(2):
    for inputs, targets in loader:
        optimizer.zero_grad()
        with torch.autocast("cpu", dtype=torch.float16):
            loss = loss_fn(model(inputs), targets)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
    scheduler.step()
""",
        # no scaler, no skips
        AMP
        + """\
scheduler = torch.optim.lr_scheduler.LinearLR(optimizer, total_iters=8)
for inputs, targets in loader:
    optimizer.zero_grad()
    loss_fn(model(inputs), targets).backward()
    optimizer.step()
    scheduler.step()
""",
    )


def _ignores(advance: SchedulerStep, step: Step, live: bool) -> bool:
    """It advances with every batch, whether or not this step was skipped."""
    if advance.explicit or advance.per != "batch":
        return False
    optimizers = {advance.optimizer, step.optimizer} - {None}
    if len(optimizers) > 1:
        return False
    # A live run cannot see the test around the call, but it sees the skip.
    return step.skipped is True if live else advance.checked is False
