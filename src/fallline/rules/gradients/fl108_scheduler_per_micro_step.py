"""FL108: the scheduler advances on micro-batches while the optimizer steps every k."""

from __future__ import annotations

from collections.abc import Iterator

from fallline.events import (
    Epoch,
    EpochEnd,
    Event,
    Scheduler,
    SchedulerStep,
    Trace,
    Window,
    acting,
    habits,
    windows,
)
from fallline.finding import Finding, Severity
from fallline.rule import Rule
from fallline.rules.gradients._specimens import SETUP

__all__ = ["SchedulerPerMicroStep"]


class SchedulerPerMicroStep(Rule):
    code = "FL108"
    name = "scheduler-per-micro-step"
    severity = Severity.ERROR
    what = "Finds `scheduler.step()` on every micro-batch of an accumulation, while the optimizer steps once per window."
    why = (
        "The schedule runs k times too fast. A cosine over 100 updates, stepped on 400 micro-batches, reaches zero after a quarter of "
        "the run and then cycles up and down again (0, 0.1, 0, 0.1)."
    )
    instead = (
        "Advance the scheduler once per update, and count its length in updates:\n\n"
        "```python\nif (i + 1) % accumulation_steps == 0:\n    optimizer.step()\n    scheduler.step()\n```"
    )
    facts = ("scheduler-counts-updates",)
    tokens = (b"sched", b"lr_", b".step(")

    def check(self, trace: Trace) -> Iterator[Finding]:
        mine = [w for w in windows(trace) if w.micro and not _owned(trace, w)]
        for window, advance in habits(((w, e) for w in mine for e in _within(trace, w)), mine):
            unseen = _unseen(trace, advance)
            yield self.finding(
                advance,
                f"The scheduler advances on every micro-batch, but the optimizer steps once per window (at {window.step.at.near(advance.at)}), "
                "so the schedule runs that many times too fast. Call scheduler.step() once per update.",
                related={"step": window.step.at},
                severity=Severity.INFO if unseen else None,
                presuming="its length is counted in updates" if unseen else None,
            )

    wrong = (
        SETUP
        + """
accumulation_steps = 2
scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=3)
for epoch in range(2):
    for i, (x, y) in enumerate(loader):
        loss = loss_fn(model(x), y) / accumulation_steps
        loss.backward()
        if (i + 1) % accumulation_steps == 0 or i + 1 == len(loader):
            optimizer.step()
            optimizer.zero_grad()
        scheduler.step()  # FL108
""",
        SETUP
        + """

def train(model, loader, optimizer, scheduler, pieces):
    for x, y in loader:
        optimizer.zero_grad()
        for small_x, small_y in zip(x.chunk(pieces), y.chunk(pieces)):
            loss = loss_fn(model(small_x), small_y) / pieces
            loss.backward()
            scheduler.step()  # FL108
        optimizer.step()


cosine = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=12)
for epoch in range(2):
    train(model, loader, optimizer, cosine, 2)
""",
    )
    right = (
        SETUP
        + """
accumulation_steps = 2
scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=3)
for epoch in range(2):
    for i, (x, y) in enumerate(loader):
        loss = loss_fn(model(x), y) / accumulation_steps
        loss.backward()
        if (i + 1) % accumulation_steps == 0 or i + 1 == len(loader):
            optimizer.step()
            scheduler.step()
            optimizer.zero_grad()
""",
        # once per epoch
        SETUP
        + """
accumulation_steps = 2
scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=1)
for epoch in range(2):
    for i, (x, y) in enumerate(loader):
        loss = loss_fn(model(x), y) / accumulation_steps
        loss.backward()
        if (i + 1) % accumulation_steps == 0 or i + 1 == len(loader):
            optimizer.step()
            optimizer.zero_grad()
    scheduler.step()
""",
        # no accumulation: once per batch is once per update
        SETUP
        + """
scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=0.1, total_steps=12)
for epoch in range(2):
    for x, y in loader:
        optimizer.zero_grad()
        loss_fn(model(x), y).backward()
        optimizer.step()
        scheduler.step()
""",
        # an explicit position may be given at any time
        SETUP
        + """
accumulation_steps = 2
scheduler = torch.optim.lr_scheduler.CosineAnnealingWarmRestarts(optimizer, T_0=2)
for epoch in range(2):
    for i, (x, y) in enumerate(loader):
        loss = loss_fn(model(x), y) / accumulation_steps
        loss.backward()
        if (i + 1) % accumulation_steps == 0 or i + 1 == len(loader):
            optimizer.step()
            optimizer.zero_grad()
        scheduler.step(epoch + i / len(loader))
""",
    )


def _owned(trace: Trace, window: Window) -> bool:
    """A framework steps here, and lets the scheduler advance only when it does."""
    return window.optimizer in trace.by_framework or any(b.normalised for b in window.micro)


def _within(trace: Trace, window: Window) -> list[SchedulerStep]:
    """Where the scheduler advances between two micro-batches of one window."""
    # a window that crosses the end of an epoch holds that epoch's own scheduler step
    if window.step.closure or window.inside.of(EpochEnd, Epoch):
        return []
    return [
        e
        for e in window.inside.of(SchedulerStep)
        if not e.explicit
        and e.per != "epoch"
        and (e.optimizer is not None or len(acting(trace, e)) == 1)
        and not _in_batches(trace, e)
    ]


def _unseen(trace: Trace, advance: Event) -> bool:
    """Nothing shows how the scheduler is made, so its length may be counted in micro-batches."""
    known = trace.object(Scheduler, advance.scheduler)
    return known is not None and known.assumed


def _in_batches(trace: Trace, advance: SchedulerStep) -> bool:
    """Its length was counted in micro-batches: it ends with the run."""
    known = trace.object(Scheduler, advance.scheduler)
    return known is not None and known.in_batches is True
