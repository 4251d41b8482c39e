"""FL310: an update made from micro-batches that were never all-reduced."""

from __future__ import annotations

from collections.abc import Iterator

from fallline.events import Backward, Forward, GradWrite, Opaque, Trace, Update, ZeroGrad
from fallline.finding import Finding, Severity
from fallline.rule import Rule
from fallline.rules.distributed._specimen import DDP


class LeftoverUnsynchronised(Rule):
    code = "FL310"
    name = "leftover-unsynchronised"
    severity = Severity.ERROR
    what = """\
The last micro-batches before the step ran under `no_sync()`, so their gradients were never all-reduced.

It happens at the end of the data, where the window is not full and the micro-batch that would synchronise never comes."""
    why = """\
Under DDP each rank steps with its own gradients, so from then on their parameters differ. A later synchronised step does not bring them together again. \
FSDP2 keeps what `set_requires_gradient_sync(False)` leaves unreduced: the step does not see it, and it is added to the next update."""
    instead = """\
Let the last micro-batch before every step synchronise, also the last one of the epoch.

```python
last = (i + 1) % k == 0 or i + 1 == len(loader)
with contextlib.nullcontext() if last else model.no_sync():
    (loss_fn(model(inputs), targets) / k).backward()
if last:
    optimizer.step()
```"""
    facts = ("leftover-unsynchronised", "ddp-accumulation-averages")

    def check(self, trace: Trace) -> Iterator[Finding]:
        for update in trace.updates:
            if _is_local(update) and (trace.live or not _syncs_midway(update)):
                yield self.finding(update.step, _message(update))

    wrong = (
        DDP
        + """\
import contextlib

optimizer.zero_grad()
for i, (inputs, targets) in enumerate(loader):
    boundary = (i + 1) % 3 == 0
    with contextlib.nullcontext() if boundary else model.no_sync():
        loss = loss_fn(model(inputs), targets) / 3
        loss.backward()
    if boundary:
        optimizer.step()
        optimizer.zero_grad()
if len(loader) % 3 != 0:
    optimizer.step()  # FL310
    optimizer.zero_grad()
""",
        DDP
        + """\
for inputs, targets in loader:
    optimizer.zero_grad()
    with model.no_sync():
        loss_fn(model(inputs), targets).backward()
    optimizer.step()  # FL310
""",
    )
    right = (
        DDP
        + """\
import contextlib

optimizer.zero_grad()
for i, (inputs, targets) in enumerate(loader):
    boundary = (i + 1) % 3 == 0 or i + 1 == len(loader)
    with contextlib.nullcontext() if boundary else model.no_sync():
        loss = loss_fn(model(inputs), targets) / 3
        loss.backward()
    if boundary:
        optimizer.step()
        optimizer.zero_grad()
""",
        # the last one synchronises the sum
        DDP
        + """\
for inputs, targets in loader:
    optimizer.zero_grad()
    for micro in range(4):
        model.require_backward_grad_sync = micro == 3
        (loss_fn(model(inputs[micro::4]), targets[micro::4]) / 4).backward()
    optimizer.step()
""",
        # averaged by hand before the step
        DDP
        + """\
for inputs, targets in loader:
    optimizer.zero_grad()
    with model.no_sync():
        loss_fn(model(inputs), targets).backward()
    for parameter in model.parameters():
        dist.all_reduce(parameter.grad)
        parameter.grad.div_(dist.get_world_size())
    optimizer.step()
""",
    )


def _message(update: Update) -> str:
    last = update.of(Backward).last
    if last is not None and last.wrapper == "fsdp2":
        return (
            "The last micro-batches before this step ran with set_requires_gradient_sync(False), so FSDP2 has not reduced their gradients: the step does not "
            "use them, and they are added to the next update. Call set_requires_gradient_sync(True) before the last micro-batch of every step."
        )
    return (
        "This step uses gradients that were never all-reduced, because the last micro-batches before it ran under no_sync(), so the ranks drift apart. "
        "Let the last micro-batch before every step synchronise."
    )


def _is_local(update: Update) -> bool:
    """The last backward before the step is known not to have synchronised, and nobody did it by hand."""
    last = update.of(Backward).last
    if last is None or last.wrapper not in ("ddp", "fsdp2") or last.sync is not False:
        return False
    if any(f.bypass for f in update.of(Forward)):
        return False  # FL309
    return not update.after(last).of(GradWrite, Opaque, ZeroGrad)


def _syncs_midway(update: Update) -> bool:
    """Neither the first nor the last micro-batch synchronised, but one between: nobody writes that.

    On paper it means that a long window was cut short, and the last micro-batch is not the one the program means.
    """
    synced = [b.sync for b in update.backwards]
    return synced[0] is False and True in synced
