"""FL134: the scheduler was built on an optimizer that nobody steps."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from fallline.events import Scheduler, SchedulerStep, Step, Trace
from fallline.finding import Finding, Severity
from fallline.flow.calls import last_name
from fallline.flow.values import values_of
from fallline.location import Location
from fallline.rule import Rule
from fallline.rules.gradients._specimens import SETUP
from fallline.syntax import Module

__all__ = ["ScheduleOnOtherOptimizer"]

_SCHEDULER = re.compile(r"sched|lr", re.IGNORECASE)


class ScheduleOnOtherOptimizer(Rule):
    code = "FL134"
    name = "schedule-on-other-optimizer"
    severity = Severity.ERROR
    what = "Finds a learning-rate scheduler that was built on one optimizer while a different one is stepped."
    why = (
        "A scheduler changes the learning rate of the optimizer it was given. If that optimizer is replaced afterwards, the one that trains "
        "keeps its first learning rate for the whole run, without warmup and without decay, and nothing says so."
    )
    instead = (
        "Build the scheduler last, on the optimizer that steps:\n\n"
        "```python\noptimizer = torch.optim.AdamW(model.parameters(), lr=3e-4)\n"
        "scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=1000)\n```"
    )
    references = ("https://docs.pytorch.org/docs/stable/optim.html#how-to-adjust-learning-rate",)
    tokens = (b"sched", b"lr_", b".step(")

    def check(self, trace: Trace) -> Iterator[Finding]:
        if trace.hides("step") or not trace.complete:
            return
        driven = {advance.optimizer for advance in trace.of(SchedulerStep)}
        free = trace.of(Step).where(lambda s: s.optimizer not in driven)
        for advance in trace.of(SchedulerStep).first_of_each():
            step = free.where(lambda s: _in_one_function(s, advance)).first  # noqa: B023
            if step is None or step.optimizer is None or not _idle(trace, advance):
                continue
            yield self.finding(
                advance,
                f"This scheduler was built on an optimizer that never steps. The one that steps at {step.at.near(advance.at)} is a different optimizer, "
                "so its learning rate never changes. Build the scheduler on that one.",
                related={"step": step.at},
            )
        yield from self._same_twice(trace)

    def _same_twice(self, trace: Trace) -> Iterator[Finding]:
        """Two schedulers of one kind drive one optimizer, and another one that steps has none."""
        driven: dict[tuple[str, str], dict[str, SchedulerStep]] = {}
        for advance in trace.of(SchedulerStep):
            made = trace.object(Scheduler, advance.scheduler)
            if made is None or made.type is None or advance.optimizer is None:
                return  # one that is not known may drive any of them
            driven.setdefault((advance.optimizer, made.type), {}).setdefault(made.id, advance)
        scheduled = {optimizer for optimizer, _ in driven}
        left = trace.of(Step).where(lambda s: s.optimizer not in scheduled).first
        if left is None or left.optimizer is None:
            return
        for (_, kind), schedulers in driven.items():
            if len(schedulers) > 1:
                advance = next(iter(schedulers.values()))
                yield self.finding(
                    advance,
                    f"{len(schedulers)} {kind} schedulers were built on one optimizer, whose learning rate changes with each of them, and the optimizer that steps at "
                    f"{left.at.near(advance.at)} has none. Build one of them on that optimizer.",
                    related={"step": left.at},
                )

    def check_syntax(self, module: Module) -> Iterator[Finding]:
        yield from self._order(module)
        yield from self._only_the_scheduler(module)

    def _order(self, module: Module) -> Iterator[Finding]:
        """`return [scheduler_d, scheduler_g]`, where scheduler_d was built on `optimizers[1]`."""
        for statement in module.all(ast.Return):
            match statement.value:
                case ast.List(elts) | ast.Tuple(elts) if len(elts) > 1:
                    made = [_built_on(module, e) for e in elts]
                case _:
                    continue
            places = [m[1] for m in made if m is not None]
            if len(places) == len(elts) and sorted(places) == list(range(len(elts))) != places:
                first = min((m[0] for m in made if m is not None), key=lambda call: call.lineno)
                yield self.finding(
                    module.location(first),
                    "The schedulers are returned in a different order from the optimizers they were built on, so whoever pairs them by position schedules the wrong one. "
                    "Build the first scheduler on the first optimizer.",
                    related={"return": module.location(statement)},
                )

    def _only_the_scheduler(self, module: Module) -> Iterator[Finding]:
        """An optimizer that is made for its scheduler alone: the scheduler is passed on, the optimizer is not."""
        for call in module.all(ast.Call):
            for keyword in call.keywords:
                if keyword.arg not in {"lr_scheduler", "scheduler"} or Module.has_star(call):
                    continue
                built = module.value(keyword.value)
                optimizer = _given_optimizer(module, built) if isinstance(built, ast.Call) else None
                if optimizer is not None and len(_uses(module, optimizer)) == 1:
                    yield self.finding(
                        module.location(keyword.value),
                        f"The scheduler is passed on, but `{optimizer.id}`, which it was built on, is not: whatever steps here is a different optimizer, and its learning "
                        f"rate never changes. Pass `{optimizer.id}` too.",
                    )

    def refutes(self, trace: Trace) -> Iterator[Location]:
        """With some other setting, this scheduler drives the optimizer that steps."""
        twice = {f.at for f in self._same_twice(trace)}
        yield from (
            e.at for e in trace.of(SchedulerStep) if e.at not in twice and not _idle(trace, e)
        )

    wrong = (
        SETUP
        + """
scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=1)
optimizer = torch.optim.Adam(model.parameters(), lr=0.001)
for epoch in range(2):
    for x, y in loader:
        optimizer.zero_grad()
        loss_fn(model(x), y).backward()
        optimizer.step()
    scheduler.step()  # FL134
""",
        SETUP
        + """
scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, gamma=0.9)
for stage in range(2):
    model.requires_grad_(True)
    trainable = torch.optim.SGD(model.parameters(), lr=0.1 / (stage + 1))
    for x, y in loader:
        trainable.zero_grad()
        loss_fn(model(x), y).backward()
        trainable.step()
        scheduler.step()  # FL134
""",
        SETUP
        + """
# Both schedulers drive the first optimizer; the head keeps its rate.
head = torch.optim.SGD(model[2].parameters(), lr=0.1)
decay = torch.optim.lr_scheduler.StepLR(optimizer, step_size=2)
decay_head = torch.optim.lr_scheduler.StepLR(optimizer, step_size=2)
for x, y in loader:
    optimizer.zero_grad()
    loss_fn(model(x), y).backward()
    optimizer.step()
    head.step()
    decay.step()  # FL134
    decay_head.step()
""",
    )
    right = (
        # a part that this run leaves alone has a schedule too, beside that of the optimizer that steps
        SETUP
        + """
scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=1)
extra = nn.Linear(1, 1)
extra_optimizer = torch.optim.Adam(extra.parameters(), lr=0.001)
extra_scheduler = torch.optim.lr_scheduler.StepLR(extra_optimizer, step_size=1)
for epoch in range(2):
    for x, y in loader:
        optimizer.zero_grad()
        loss_fn(model(x), y).backward()
        optimizer.step()
    scheduler.step()
    extra_scheduler.step()
""",
        SETUP
        + """
# A warm-up and a decay on one optimizer; the head keeps its rate.
head = torch.optim.SGD(model[2].parameters(), lr=0.1)
warmup = torch.optim.lr_scheduler.LinearLR(optimizer, total_iters=2)
decay = torch.optim.lr_scheduler.StepLR(optimizer, step_size=2)
for x, y in loader:
    optimizer.zero_grad()
    loss_fn(model(x), y).backward()
    optimizer.step()
    head.step()
    warmup.step()
    decay.step()
""",
        SETUP
        + """
optimizer = torch.optim.Adam(model.parameters(), lr=0.001)
scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=1)
for epoch in range(2):
    for x, y in loader:
        optimizer.zero_grad()
        loss_fn(model(x), y).backward()
        optimizer.step()
    scheduler.step()
""",
        SETUP
        + """
# Two optimizers, each with its scheduler.
head = torch.optim.SGD(model[2].parameters(), lr=0.1)
schedulers = [torch.optim.lr_scheduler.StepLR(o, step_size=1) for o in (optimizer, head)]
for x, y in loader:
    optimizer.zero_grad()
    loss_fn(model(x), y).backward()
    optimizer.step()
    head.step()
for scheduler in schedulers:
    scheduler.step()
""",
    )


def _built_on(module: Module, node: ast.expr) -> tuple[ast.Call, int] | None:
    """The call that made this scheduler, and `i` where it was given `optimizers[i]`."""
    made = module.value(node)
    if not isinstance(made, ast.Call) or not _SCHEDULER.search(last_name(made)):
        return None
    for value in (*made.args, *(k.value for k in made.keywords)):
        match value:
            case ast.Subscript(ast.Name(name), ast.Constant(int(place))) if "opt" in name.lower():
                return made, place
    return None


def _given_optimizer(module: Module, built: ast.Call) -> ast.Name | None:
    """The local optimizer that a scheduler is built on."""
    if not _SCHEDULER.search(last_name(built)):
        return None
    for value in (*built.args, *(k.value for k in built.keywords)):
        if isinstance(value, ast.Name) and "optim" in value.id.lower():
            return value if isinstance(module.value(value), ast.Call) else None
    return None


def _uses(module: Module, name: ast.Name) -> list[ast.Name]:
    return values_of(module).uses(name.id, module.scope(name))


def _idle(trace: Trace, advance: SchedulerStep) -> bool:
    """The scheduler's own optimizer was seen to be made, and never steps. One of a single made-up number only lends it."""
    made = trace.optimizer(advance.optimizer)
    if made is None or made.assumed or made.loose:
        return False
    return made.id not in trace.optimizers


def _in_one_function(step: Step, advance: SchedulerStep) -> bool:
    """The function that advances the scheduler also steps, itself or through a helper."""
    here = (advance.at.path, advance.at.function)
    return any((at.path, at.function) == here for at in (step.at, *step.callers))
