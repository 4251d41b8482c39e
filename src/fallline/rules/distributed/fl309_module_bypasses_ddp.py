"""FL309: the forward pass runs on model.module, so DDP never synchronises."""

from __future__ import annotations

from collections.abc import Iterator

from fallline.events import Event, Kind, Trace
from fallline.finding import Finding, Severity
from fallline.rule import Rule
from fallline.rules._order import following
from fallline.rules.distributed._specimen import DDP


class ModuleBypassesDdp(Rule):
    code = "FL309"
    name = "module-bypasses-ddp"
    severity = Severity.ERROR
    what = """\
A training pass calls `model.module(...)`, past the DDP wrapper."""
    why = """\
DDP prepares the all-reduce in its own forward pass; without it the gradients are never averaged, and every rank trains a model of its own.

Nothing raises, and each rank's loss falls. For validation `model.module(...)` is fine."""
    instead = """\
Call the wrapped model.

```python
loss = loss_fn(model(inputs), targets)      # not model.module(inputs)
```"""

    def check(self, trace: Trace) -> Iterator[Finding]:
        pending: list[Event] = []  # training passes since the last backward
        for event in trace.all(Kind.FORWARD, Kind.BACKWARD, Kind.STEP):
            if (
                event.kind is Kind.FORWARD
                and event.fact("grad") is not False
                and event.fact("used") is not False
            ):
                pending.append(event)
            elif event.kind is Kind.BACKWARD:
                bypassed = [
                    f for f in pending if f.fact("bypass") and f.fact("training") is not False
                ]
                through = any(f.fact("wrapper") == "ddp" and not f.fact("bypass") for f in pending)
                if bypassed and not through and not _by_hand(trace, event):
                    yield from map(self._bypassed, bypassed)
                pending = []

    def _bypassed(self, forward: Event) -> Finding:
        return self.finding(
            forward,
            "This training pass calls model.module, past DDP: the gradients are never averaged over the ranks, and their models drift apart. "
            "Call the wrapped model",
        )

    wrong = (
        DDP
        + """\
for inputs, targets in loader:
    optimizer.zero_grad()
    outputs = model.module(inputs)  # FL309
    loss_fn(outputs, targets).backward()
    optimizer.step()
""",
        DDP
        + """\
net = model.module


def train_one_epoch(net):
    for inputs, targets in loader:
        optimizer.zero_grad()
        loss = loss_fn(net(inputs), targets)  # FL309
        loss.backward()
        optimizer.step()


train_one_epoch(net)
""",
    )
    right = (
        # validation
        DDP
        + """\
for inputs, targets in loader:
    optimizer.zero_grad()
    loss_fn(model(inputs), targets).backward()
    optimizer.step()
model.eval()
with torch.no_grad():
    for inputs, targets in loader:
        model.module(inputs)
""",
        # the module is saved, not called
        DDP
        + """\
for inputs, targets in loader:
    optimizer.zero_grad()
    loss_fn(model(inputs), targets).backward()
    optimizer.step()
weights = model.module.state_dict()
print(sum(p.numel() for p in model.module.parameters()), len(weights))
""",
        # averaged by hand
        DDP
        + """\
for inputs, targets in loader:
    optimizer.zero_grad()
    loss_fn(model.module(inputs), targets).backward()
    for parameter in model.parameters():
        dist.all_reduce(parameter.grad)
        parameter.grad.div_(dist.get_world_size())
    optimizer.step()
""",
    )


def _by_hand(trace: Trace, backward: Event) -> bool:
    """The gradients are changed, perhaps averaged, before the step; or it cannot be seen."""
    for event in following(trace, backward):
        if event.kind in {Kind.GRAD_WRITE, Kind.OPAQUE}:
            return True
        if event.kind is Kind.STEP:
            return False
    return False
