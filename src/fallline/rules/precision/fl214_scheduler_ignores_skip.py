"""FL214: the scheduler advances although the scaler skipped the step."""

from __future__ import annotations

from collections.abc import Iterator

from fallline.events import Event, Kind, Trace
from fallline.finding import Finding, Severity
from fallline.rule import Rule
from fallline.rules.precision._scale import on
from fallline.rules.precision._specimen import AMP


class SchedulerIgnoresSkip(Rule):
    code = "FL214"
    name = "scheduler-ignores-skip"
    severity = Severity.INFO
    what = """\
A scheduler that advances with every step does so also when the scaler has skipped the step."""
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
        step: Event | None = None
        for event in trace.all(Kind.STEP, Kind.BACKWARD, Kind.SCHEDULER_STEP):
            if event.kind is Kind.BACKWARD:
                step = None
            elif event.kind is Kind.STEP:
                step = event if event.fact("via") == "scaler" and on(trace, event) else None
            elif step is not None and self._advances(event, step, trace.live):
                yield self.finding(
                    event,
                    "The scheduler advances also when the scaler skips the step, so the learning rate runs ahead of the updates. "
                    "Step it only when scaler.get_scale() has not fallen",
                )

    @staticmethod
    def _advances(event: Event, step: Event, live: bool) -> bool:
        if event.fact("explicit") or event.fact("per") != "batch":
            return False
        if (
            event.optimizer is not None
            and step.optimizer is not None
            and event.optimizer != step.optimizer
        ):
            return False
        # A live run cannot see the test around the call, but it sees the skip.
        return step.fact("skipped") is True if live else event.fact("checked") is False

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
