"""FL213: scaler.update() inside the accumulation window."""

from __future__ import annotations

from collections.abc import Iterator

from fallline.events import (
    Backward,
    Event,
    Opaque,
    ScalerUpdate,
    Step,
    Trace,
    Unscale,
    ZeroGrad,
    reaches,
    same_scaler,
    scaler_on,
    touched_optimizers,
)
from fallline.finding import Finding, Severity
from fallline.rule import Rule
from fallline.rules.precision._specimen import AMP

_ENDS = (Step, ZeroGrad, Opaque)


class UpdatePartial(Rule):
    code = "FL213"
    name = "update-partial"
    severity = Severity.ERROR
    yields_to = ("FL202", "FL204", "FL212")
    what = """\
`scaler.update()` is called inside the accumulation window, between micro-batches that belong to one step."""
    why = """\
With no `step` or `unscale_` since the last update torch raises `AssertionError: No inf checks were recorded prior to update.`

If it does not raise, the scale may change in the middle of the window, so that micro-batches with different scales are added."""
    instead = """\
Update the scaler once for each window, after the step.

```python
scaler.scale(loss / k).backward()
if (i + 1) % k == 0:
    scaler.step(optimizer)
    scaler.update()
    optimizer.zero_grad()
```"""
    facts = ("update-once-per-window",)

    def check(self, trace: Trace) -> Iterator[Finding]:
        for update in trace.of(ScalerUpdate):
            if not scaler_on(trace, update):
                continue
            if _unchecked(trace, update):
                yield self.finding(
                    update,
                    "scaler.update() runs although there was no step or unscale_ since the last update, so torch raises AssertionError. "
                    "Update once for each window, after scaler.step.",
                )
            elif any(_between(trace, update, o) for o in touched_optimizers(trace)):
                yield self.finding(
                    update,
                    "scaler.update() runs between micro-batches that are accumulated into one step; when it changes the scale, their gradients no longer "
                    "add up. Update once for each window, after scaler.step.",
                )

    wrong = (
        AMP
        + """\
optimizer.zero_grad()
for i, (inputs, targets) in enumerate(loader):
    with torch.autocast("cpu", dtype=torch.float16):
        loss = loss_fn(model(inputs), targets) / 2
    scaler.scale(loss).backward()
    if (i + 1) % 2 == 0 or i + 1 == len(loader):
        scaler.step(optimizer)
        optimizer.zero_grad()
    scaler.update()  # FL213
""",
        AMP
        + """\
for inputs, targets in loader:
    optimizer.zero_grad()
    for micro, wanted in zip(inputs.chunk(4), targets.chunk(4)):
        with torch.autocast("cpu", dtype=torch.float16):
            loss = loss_fn(model(micro), wanted) / 4
        scaler.scale(loss).backward()
        scaler.update()  # FL213
    scaler.step(optimizer)
""",
    )
    right = (
        AMP
        + """\
optimizer.zero_grad()
for i, (inputs, targets) in enumerate(loader):
    with torch.autocast("cpu", dtype=torch.float16):
        loss = loss_fn(model(inputs), targets) / 2
    scaler.scale(loss).backward()
    if (i + 1) % 2 == 0 or i + 1 == len(loader):
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
""",
        # every micro-batch is a step of its own
        AMP
        + """\
for inputs, targets in loader:
    for micro, wanted in zip(inputs.chunk(4), targets.chunk(4)):
        optimizer.zero_grad()
        with torch.autocast("cpu", dtype=torch.float16):
            loss = loss_fn(model(micro), wanted)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
""",
        # the critic is stepped more often than the generator, with one scaler
        """\
import torch

critic = torch.nn.Linear(8, 1)
generator = torch.nn.Linear(4, 8)
opt_c = torch.optim.Adam(critic.parameters(), lr=1e-3)
opt_g = torch.optim.Adam(generator.parameters(), lr=1e-3)
scaler = torch.amp.GradScaler("cpu")
loader = torch.utils.data.DataLoader(torch.randn(64, 8), batch_size=16)

for i, real in enumerate(loader):
    opt_c.zero_grad()
    fake = generator(torch.randn(16, 4)).detach()
    loss_c = critic(fake).mean() - critic(real).mean()
    scaler.scale(loss_c).backward()
    scaler.step(opt_c)
    scaler.update()
    if i % 2 == 0:
        opt_g.zero_grad()
        loss_g = -critic(generator(torch.randn(16, 4))).mean()
        scaler.scale(loss_g).backward()
        scaler.step(opt_g)
        scaler.update()
""",
        # a scaler that is off
        AMP
        + """\
scaler = torch.amp.GradScaler("cpu", enabled=False)
for inputs, targets in loader:
    optimizer.zero_grad()
    for micro, wanted in zip(inputs.chunk(4), targets.chunk(4)):
        loss = loss_fn(model(micro), wanted) / 4
        scaler.scale(loss).backward()
        scaler.update()
    scaler.step(optimizer)
""",
    )


def _unchecked(trace: Trace, update: ScalerUpdate) -> bool:
    """Scaled gradients are there, and nothing has looked at them since the last update."""
    pending = False
    for event in trace.before(update).where(
        lambda e: isinstance(e, Opaque) or same_scaler(e, update)
    ):
        match event:
            case Opaque() | Unscale() | Step():
                # a direct step past the scaler is FL203, whatever the update then does
                return False
            case Backward(scaled=True):
                pending = True
            case ScalerUpdate():
                break
    return pending


def _between(trace: Trace, update: ScalerUpdate, optimizer: str | None) -> bool:
    """The same loss is scaled and added to this optimizer's gradients before and after the update, up to its step."""
    earlier: set[object] = set()
    for event in trace.before(update).of(*_ENDS, Backward):
        match event:
            case Backward():
                if _adds(trace, event, update, optimizer):
                    earlier.add(event.loss)
            case _ if _may_touch(trace, event, optimizer):
                break
    again = False
    for event in trace.after(update).of(*_ENDS, Backward):
        match event:
            case Backward():
                again = again or (_adds(trace, event, update, optimizer) and event.loss in earlier)
            case _ if _may_touch(trace, event, optimizer):
                return again and isinstance(event, Step) and trace.concerns(event, optimizer)
    return False


def _may_touch(trace: Trace, event: Event, optimizer: str | None) -> bool:
    """What clears or steps for another optimizer may do so for the parameters of this one: those of the other are the same, or not seen."""
    if trace.concerns(event, optimizer):
        return True
    own, others = trace.held_by(optimizer), trace.held_by(event.optimizer)
    return own is None or others is None or not own.isdisjoint(others)


def _adds(trace: Trace, backward: Backward, update: ScalerUpdate, optimizer: str | None) -> bool:
    scaled = backward.scaled is True and same_scaler(backward, update)
    return scaled and reaches(trace, backward, optimizer)
