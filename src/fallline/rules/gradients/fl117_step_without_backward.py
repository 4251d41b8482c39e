"""FL117: optimizer.step() with no backward since the last step."""

from __future__ import annotations

from collections.abc import Iterator

from fallline.events import (
    Backward,
    Batch,
    EpochEnd,
    Forward,
    GradWrite,
    Opaque,
    Trace,
    Update,
    Window,
    ZeroGrad,
    habits,
    is_habit,
    windows,
)
from fallline.finding import Finding, Severity
from fallline.location import Location
from fallline.rule import Rule
from fallline.rules.gradients._specimens import SETUP

__all__ = ["StepWithoutBackward"]


class StepWithoutBackward(Rule):
    code = "FL117"
    name = "step-without-backward"
    severity = Severity.ERROR
    yields_to = ("FL105",)
    what = "Finds `optimizer.step()` where no gradient has changed since the last step of that optimizer."
    why = (
        "The step either repeats the old gradients, which doubles the update, or, after `zero_grad()`, does nothing at all. After "
        "`zero_grad(set_to_none=False)` momentum, Adam and weight decay still move the parameters, without having learned anything."
    )
    instead = "One step for each complete set of gradients:\n\n```python\noptimizer.zero_grad()\nloss.backward()\noptimizer.step()\n```"
    tokens = (b".step(",)

    def check(self, trace: Trace) -> Iterator[Finding]:
        yield from self._missed(trace)
        for optimizer in trace.optimizers:
            updates = trace.updates_of(optimizer)
            if optimizer in trace.by_framework:
                continue
            if not any(u.backwards for u in updates):
                yield from self._never(trace, updates)
                continue
            empty = [u for u in updates if _empty(u)]
            without = {id(u) for u in empty}
            places: dict[str, list[bool]] = {}
            for update in updates:
                places.setdefault(str(update.step.at), []).append(id(update) in without)
            # Before the first backward of a run a step may be there to please a scheduler, or the loop begins with
            # finishing the update before.
            first = next(u.index for u in updates if u.backwards)
            for update in empty:
                place = str(update.step.at)
                if _only_steps(updates, update) or _another_backward(trace, update):
                    continue
                if _finishes(updates, update):
                    continue
                if update.index > first and is_habit(places.pop(place, [])):
                    yield self.finding(
                        update.step,
                        "No backward() has run since the last step of this optimizer, so this step applies old gradients again, or none. "
                        "Call backward() before it, or leave the step out.",
                        # cleared before: there is nothing old to apply, and a late epoch may bring the backward
                        severity=Severity.WARNING if update.of(ZeroGrad) else None,
                    )

    def _missed(self, trace: Trace) -> Iterator[Finding]:
        """A network whose output was detached, and then stepped after the backward that was to train it."""
        mine = [w for w in windows(trace) if w.optimizer not in trace.by_framework]
        cut = ((w, f) for w in mine if (f := _cut_off(trace, w)) is not None)
        for window, forward in habits(cut, mine):
            yield self.finding(
                window.step,
                f"The backward before this step does not reach what the optimizer holds: the output of the model at {forward.seen_from(window.step).near(window.step.at)} "
                "was detached, so the step has no gradients to apply. Remove the detach().",
                severity=Severity.WARNING,
            )

    def refutes(self, trace: Trace) -> Iterator[Location]:
        """Another setting computes gradients for the same step: what is missing is left out on purpose."""
        cut = {w.step.at for w in windows(trace) if _cut_off(trace, w) is not None}
        empty = {u.step.at for u in trace.updates if _empty(u)} | cut
        yield from {u.step.at for u in trace.updates} - empty

    def _never(self, trace: Trace, updates: list[Update]) -> Iterator[Finding]:
        """A loop that computes with the model and steps, and has no backward at all."""
        if trace.hides("backward") or not trace.complete or len(updates) < 2:
            return
        for update in updates:
            passes = [e for e in update.of(Forward) if e.grad and e.used is False]
            if not passes or not _empty(update) or any(e.training is False for e in passes):
                return
            if _another_backward(trace, update):
                return
        yield self.finding(
            updates[0].step,
            "There is no backward() in this loop, so the step has no gradients to apply and the model does not learn. "
            "Call loss.backward() before it.",
        )

    wrong = (
        SETUP
        + """
for epoch in range(2):
    for x, y in loader:
        optimizer.zero_grad()
        loss = loss_fn(model(x), y)
        loss.backward()
        optimizer.step()
    optimizer.step()  # FL117
""",
        SETUP
        + """

def update(x, y):
    optimizer.zero_grad()
    loss_fn(model(x), y).backward()
    optimizer.step()


for epoch in range(2):
    for x, y in loader:
        update(x, y)
        optimizer.step()  # FL117
""",
        SETUP
        + """
for epoch in range(2):
    for x, y in loader:
        optimizer.zero_grad()
        loss = loss_fn(model(x), y)
        optimizer.step()  # FL117
""",
    )
    right = (
        SETUP
        + """
# Only the schedule is looked at: no model runs.
scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=2)
for epoch in range(4):
    optimizer.step()
    scheduler.step()
    print(scheduler.get_last_lr())
""",
        SETUP
        + """
for epoch in range(2):
    for x, y in loader:
        optimizer.zero_grad()
        loss_fn(model(x), y).backward()
        optimizer.step()
""",
        # gradients assigned by hand
        SETUP
        + """
for epoch in range(2):
    for x, y in loader:
        gradients = torch.autograd.grad(loss_fn(model(x), y), list(model.parameters()))
        for parameter, gradient in zip(model.parameters(), gradients):
            parameter.grad = gradient
        optimizer.step()
""",
        # what the loss is made of was read from a file: the backward may well reach the temperature
        SETUP
        + """
temperature = nn.Linear(1, 1)
other = torch.optim.SGD(temperature.parameters(), lr=0.01)
if resume:
    temperature = torch.load("checkpoint.pt")["temperature"]
for epoch in range(2):
    for x, y in loader:
        distance = loss_fn(model(x), y)
        weight = temperature(x).mean()
        other.zero_grad()
        (-weight * distance).backward(retain_graph=True)
        other.step()
        optimizer.zero_grad()
        distance.backward()
        optimizer.step()
        print(model(x))
""",
        # one backward, two optimizers
        SETUP
        + """
head = nn.Linear(1, 1)
head_optimizer = torch.optim.SGD(head.parameters(), lr=0.01)
for epoch in range(2):
    for x, y in loader:
        optimizer.zero_grad()
        head_optimizer.zero_grad()
        loss_fn(head(model(x)), y).backward()
        optimizer.step()
        head_optimizer.step()
""",
        # the closure computes the gradients
        SETUP
        + """
optimizer = torch.optim.LBFGS(model.parameters(), lr=0.1, max_iter=4)


def closure():
    optimizer.zero_grad()
    loss = loss_fn(model(x), y)
    loss.backward()
    return loss


for epoch in range(2):
    for x, y in loader:
        optimizer.step(closure)
""",
    )


def _cut_off(trace: Trace, window: Window) -> Forward | None:
    """The pass of this optimizer's model, just before the backward that it steps after, whose result has no way to that backward."""
    held = trace.held_by(window.optimizer)
    backward = trace.before(window.step).of(Backward).first
    own = trace.before(window.step).of(ZeroGrad).where(lambda e: e.optimizer == window.optimizer)
    cleared = own.first
    if held is None or window.alive or backward is None or cleared is None:
        return None
    if cleared.order > backward.order or trace.between(cleared, window.step).of(GradWrite, Opaque):
        return None
    if backward.parameters is None or not backward.parameters.isdisjoint(held):
        return None
    before = trace.before(backward).of(Backward).first
    start = before.order if before is not None else -1
    passes = trace.before(backward).of(Forward).where(lambda f: f.order > start)
    mine = [f for f in passes if f.parameters is not None and f.parameters <= held]
    lost = [f for f in mine if f.grad and f.used is False and f.training is not False]
    return lost[0] if lost and len(lost) == len(mine) else None


def _only_steps(updates: list[Update], update: Update) -> bool:
    """A loop with nothing but a step in it (`for _ in range(100): optimizer.step()`) measures the optimizer."""
    before = updates[update.index - 1] if update.index else None
    after = updates[update.index + 1] if update.index + 1 < len(updates) else None
    return any(
        other is not None
        and other.step.at == update.step.at
        and not (update if other is before else other).of(Forward, Batch)
        for other in (before, after)
    )


def _finishes(updates: list[Update], update: Update) -> bool:
    """A step after the loop for what its last window left over: this time nothing was."""
    before = updates[update.index - 1] if update.index else None
    windowed = before is not None and before.step.boundary is not None
    return windowed and update.step.boundary is None and bool(update.of(EpochEnd))


def _another_backward(trace: Trace, update: Update) -> bool:
    """A backward since this optimizer was cleared: it may reach what the optimizer holds in ways that were not seen."""
    own = update.of(ZeroGrad).where(lambda e: e.optimizer == update.optimizer).last
    return bool(trace.between(own or update.events[0], update.step).of(Backward))


def _empty(update: Update) -> bool:
    """A step of its own accord: no gradient was produced, written or handed over for it."""
    return not update.step.closure and not update.of(Backward, GradWrite, Opaque)
