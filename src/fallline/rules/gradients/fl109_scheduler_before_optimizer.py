"""FL109: scheduler.step() comes before optimizer.step()."""

from __future__ import annotations

from collections.abc import Iterator

from fallline.events import Backward, Opaque, Scheduler, SchedulerStep, Step, Trace, acting, windows
from fallline.finding import Finding, Fix, Severity
from fallline.location import Location
from fallline.rule import Rule
from fallline.rules.gradients._moves import lone_statement
from fallline.rules.gradients._specimens import SETUP
from fallline.syntax import Editor, Module

__all__ = ["SchedulerBeforeOptimizer"]


class SchedulerBeforeOptimizer(Rule):
    code = "FL109"
    name = "scheduler-before-optimizer"
    severity = Severity.WARNING
    yields_to = ("FL108",)
    what = "Finds loops that advance the learning-rate scheduler before the optimizer has stepped."
    why = (
        "Since PyTorch 1.1 a scheduler sets the first learning rate when it is made, and each `step()` moves on to the next one. If it "
        "advances before the optimizer, the first value is skipped and the whole schedule is one step early. torch warns once, and only for the first step."
    )
    instead = "Step the optimizer first:\n\n```python\noptimizer.step()\nscheduler.step()\n```"
    fix_safety = (
        "`scheduler.step()` moves after the statement that steps the optimizer, in its own block."
    )
    references = ("https://docs.pytorch.org/docs/stable/optim.html#how-to-adjust-learning-rate",)
    tokens = (b"sched", b"lr_", b".step(")

    def check(self, trace: Trace) -> Iterator[Finding]:
        hidden = trace.hides("step")
        for advance in trace.of(SchedulerStep).first_of_each():
            if advance.explicit or _counts_micro_batches(trace, advance):
                continue
            step = _first_step(trace, advance)
            if step is None or step.order < advance.order:
                continue
            if not _within_update(trace, advance, step) and (
                hidden or _out_of_sight(advance, step) or not _in_the_loop(trace, advance, step)
            ):
                continue
            each_batch = advance.per == "batch"
            yield self.finding(
                advance,
                f"scheduler.step() comes before the optimizer.step() at {step.at.near(advance.at)}, so the first learning rate is "
                f"skipped and the schedule runs one step early{', which hardly matters in a schedule of single updates' if each_batch else ''}. "
                "Call it after optimizer.step().",
                # one update early is nothing; of 27 schedules that were an epoch early in public code, 3 were worth a change
                severity=None
                if not each_batch and not _steps_an_input(trace, step) and _matters(trace, advance)
                else Severity.INFO,
                related={"step": _seen_from(advance, step)},
            )

    def fix(self, finding: Finding, module: Module) -> Fix | None:
        advance = lone_statement(module, finding.at)
        step = finding.related.get("step")
        if advance is None or step is None or step.path != module.path:
            return None
        editor = Editor(module)
        for later in editor.block_of(advance):
            if later.lineno > advance.lineno and later.lineno <= step.line <= (
                later.end_lineno or later.lineno
            ):
                return Fix(
                    "Step the scheduler after the optimizer", editor.move_after(advance, later)
                )
        return None

    wrong = (
        SETUP
        + """
scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=1)
for epoch in range(2):
    scheduler.step()  # FL109
    for x, y in loader:
        optimizer.zero_grad()
        loss_fn(model(x), y).backward()
        optimizer.step()
""",
        SETUP
        + """

class Trainer:
    def __init__(self, model, optimizer):
        self.model = model
        self.optimizer = optimizer
        self.scheduler = torch.optim.lr_scheduler.LinearLR(optimizer, total_iters=10)

    def update(self, x, y):
        self.optimizer.zero_grad()
        loss = loss_fn(self.model(x), y)
        loss.backward()
        self.scheduler.step()  # FL109
        self.optimizer.step()


trainer = Trainer(model, optimizer)
for epoch in range(2):
    for x, y in loader:
        trainer.update(x, y)
""",
    )
    right = (
        SETUP
        + """
scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=1)
for epoch in range(2):
    for x, y in loader:
        optimizer.zero_grad()
        loss_fn(model(x), y).backward()
        optimizer.step()
    scheduler.step()
""",
        # once per update, after the optimizer
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
        # an explicit epoch is right anywhere
        SETUP
        + """
scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=2)
for epoch in range(2):
    scheduler.step(epoch)
    for x, y in loader:
        optimizer.zero_grad()
        loss_fn(model(x), y).backward()
        optimizer.step()
""",
        # an environment's step is not an optimizer's
        SETUP
        + """

class Environment:
    def step(self, action):
        return torch.randn(8), float(action)


environment = Environment()
scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=5)
state = torch.randn(8)
for episode in range(4):
    action = model(state)
    state, reward = environment.step(action.item())
    optimizer.zero_grad()
    (-reward * action).sum().backward()
    optimizer.step()
    scheduler.step()
""",
    )


def _first_step(trace: Trace, advance: SchedulerStep) -> Step | None:
    """The first step of the optimizer this scheduler drives."""
    candidates = [advance.optimizer] if advance.optimizer else acting(trace, advance)
    if len(candidates) != 1 or (trace.live and candidates[0] in trace.by_framework):
        return None
    return trace.of(Step).where(lambda e: e.optimizer == candidates[0]).first


def _out_of_sight(advance: SchedulerStep, step: Step) -> bool:
    """A framework steps, and not in the function that advances the schedule: what comes first is the framework's choice."""
    return step.via == "framework" and step.at.function != advance.at.function


def _within_update(trace: Trace, advance: SchedulerStep, step: Step) -> bool:
    """Between a backward and its step: whatever else cannot be seen, it comes too early."""
    before = trace.before(advance).of(Backward, Step, Opaque).first
    after = trace.after(advance).of(Backward, Step, Opaque).first
    return isinstance(before, Backward) and after is step


def _in_the_loop(trace: Trace, advance: SchedulerStep, step: Step) -> bool:
    """Not the catching-up of a resumed run: it is between a backward and its step, or comes again after one."""
    middle = bool(trace.before(advance).of(Backward))
    here = [e.order for e in trace.of(SchedulerStep) if e.at == advance.at]
    # played several times before anything is trained, it catches up, even where the whole run is read twice
    again = here[-1] > step.order and not any(advance.order < o < step.order for o in here)
    return middle or again


def _counts_micro_batches(trace: Trace, advance: SchedulerStep) -> bool:
    """Its length is counted in batches, and the first of them do not step: it begins with the window, not with the step."""
    known = trace.object(Scheduler, advance.scheduler)
    return known is not None and known.in_batches is True and any(w.micro for w in windows(trace))


def _matters(trace: Trace, advance: SchedulerStep) -> bool:
    """The first rate is far from the second; a smooth schedule hardly changes in one epoch, and stairs change seldom."""
    known = trace.object(Scheduler, advance.scheduler)
    return trace.live or (known is not None and known.jumps is True)


def _steps_an_input(trace: Trace, step: Step) -> bool:
    """An attack or an inversion: its short schedule begins again with every input, and no model learns from it."""
    known = trace.optimizer(step.optimizer)
    return known is not None and known.loose is True


def _seen_from(advance: SchedulerStep, step: Step) -> Location:
    """The step as it looks from the scheduler's function: itself, or the call that leads to it."""
    near = [
        at
        for at in (step.at, *step.callers)
        if at.path == advance.at.path and at.function == advance.at.function
    ]
    return near[0] if near else step.at
