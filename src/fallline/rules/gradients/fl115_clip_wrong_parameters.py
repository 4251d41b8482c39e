"""FL115: the clipped parameters are not the ones that this optimizer steps."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from fallline.events import (
    Backward,
    Clip,
    GradWrite,
    Optimizer,
    Step,
    Trace,
    ZeroGrad,
    clears,
    misdirected,
    position,
)
from fallline.finding import Finding, Severity
from fallline.flow.spent import Spent, spent
from fallline.rule import Rule
from fallline.rules.gradients._specimens import SETUP
from fallline.syntax import Module

__all__ = ["ClipWrongParameters"]


class ClipWrongParameters(Rule):
    code = "FL115"
    name = "clip-wrong-parameters"
    severity = Severity.ERROR
    yields_to = ("FL102",)
    yields_within = "line"
    what = "Finds a clip right before a step whose optimizer holds none of the clipped parameters, and a clip that is given none at all: `model.parameters()` under a name can be gone through once, and the optimizer already did."
    why = (
        "The step uses its own gradients unclipped, and the clip works on a different network: on nothing, or on gradients that are about to be cleared. "
        "In code with two networks it is usually a copied line with the wrong name. torch only warns about an empty generator, and returns a norm of 0."
    )
    instead = "Clip what the optimizer steps:\n\n```python\ntorch.nn.utils.clip_grad_norm_(discriminator.parameters(), 1.0)\ndiscriminator_optimizer.step()\n```\n\nKeep parameters that are used more than once as a list: `params = list(model.parameters())`."
    tokens = (b"clip",)

    def check(self, trace: Trace) -> Iterator[Finding]:
        empty = next((clip for clip in trace.of(Clip) if clip.empty), None)
        if empty is not None:
            yield self.finding(
                empty,
                "This clip got no parameters, so nothing is clipped. An iterator can be gone through only once: clip `model.parameters()`, or keep a list.",
            )
        for clip in trace.of(Clip).first_of_each():
            step = misdirected(trace, clip)
            if step is None or clip.measures_only or _useful_elsewhere(trace, clip):
                continue
            if _clipped_beside(trace, clip, step):
                continue
            if any(e.op == "assign" for e in trace.between(clip, step).of(GradWrite)):
                continue  # the clipped gradients are handed over, as from a worker to the shared model
            yield self.finding(
                clip,
                f"The step at {step.at.near(clip.at)} uses none of the parameters that are clipped here, so that update is not "
                "clipped. Clip the parameters of that optimizer.",
                related={"step": step.at},
            )

    def check_syntax(self, module: Module) -> Iterator[Finding]:
        for call in module.calls(
            "torch.nn.utils.clip_grad_norm_", "torch.nn.utils.clip_grad_value_"
        ):
            given = module.argument(call, 0, "parameters")
            gone = spent(module, given)
            if given is not None and gone is not None:
                yield self.finding(module.location(call), _emptied(module, given, gone))

    wrong = (
        SETUP
        + """
parameters = model.parameters()
optimizer = torch.optim.SGD(parameters, lr=0.01)
for epoch in range(2):
    for x, y in loader:
        optimizer.zero_grad()
        loss_fn(model(x), y).backward()
        nn.utils.clip_grad_norm_(parameters, 1.0)  # FL115
        optimizer.step()
""",
        SETUP
        + """
discriminator = nn.Linear(1, 1)
discriminator_optimizer = torch.optim.SGD(discriminator.parameters(), lr=0.01)
for epoch in range(2):
    for x, y in loader:
        discriminator_optimizer.zero_grad()
        (discriminator(model(x).detach()) - discriminator(y)).mean().backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)  # FL115
        discriminator_optimizer.step()

        optimizer.zero_grad()
        (-discriminator(model(x))).mean().backward()
        optimizer.step()
""",
        SETUP
        + """
teacher = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 1))


def distil(student, teacher, loader, optimizer):
    for x, _ in loader:
        optimizer.zero_grad()
        with torch.no_grad():
            target = teacher(x)
        loss = nn.functional.mse_loss(student(x), target)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(teacher.parameters(), 1.0)  # FL115
        optimizer.step()


for epoch in range(2):
    distil(model, teacher, loader, optimizer)
""",
    )
    right = (
        SETUP
        + """
discriminator = nn.Linear(1, 1)
discriminator_optimizer = torch.optim.SGD(discriminator.parameters(), lr=0.01)
for epoch in range(2):
    for x, y in loader:
        discriminator_optimizer.zero_grad()
        (discriminator(model(x).detach()) - discriminator(y)).mean().backward()
        nn.utils.clip_grad_norm_(discriminator.parameters(), 1.0)
        discriminator_optimizer.step()

        optimizer.zero_grad()
        (-discriminator(model(x))).mean().backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
""",
        # one backward for two optimizers: both clips come first
        SETUP
        + """
head = nn.Linear(1, 1)
head_optimizer = torch.optim.SGD(head.parameters(), lr=0.01)
for epoch in range(2):
    for x, y in loader:
        optimizer.zero_grad()
        head_optimizer.zero_grad()
        loss_fn(head(model(x)), y).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        nn.utils.clip_grad_norm_(head.parameters(), 1.0)
        head_optimizer.step()
        optimizer.step()
""",
        # a worker hands its clipped gradients to the shared model
        SETUP
        + """
import copy

worker = copy.deepcopy(model)
for epoch in range(2):
    for x, y in loader:
        worker.load_state_dict(model.state_dict())
        worker.zero_grad()
        optimizer.zero_grad()
        loss_fn(worker(x), y).backward()
        nn.utils.clip_grad_norm_(worker.parameters(), 1.0)
        for local, shared in zip(worker.parameters(), model.parameters()):
            shared.grad = local.grad
        optimizer.step()
""",
        # a list can be gone through any number of times
        SETUP
        + """
parameters = list(model.parameters())
optimizer = torch.optim.SGD(parameters, lr=0.01)
for epoch in range(2):
    for x, y in loader:
        optimizer.zero_grad()
        loss_fn(model(x), y).backward()
        nn.utils.clip_grad_norm_(parameters, 1.0)
        optimizer.step()
""",
        # a part of what the optimizer holds
        SETUP
        + """
for epoch in range(2):
    for x, y in loader:
        optimizer.zero_grad()
        loss_fn(model(x), y).backward()
        nn.utils.clip_grad_norm_(model[0].parameters(), 1.0)
        optimizer.step()
""",
    )


def _emptied(module: Module, given: ast.expr, gone: Spent) -> str:
    name, made = module.segment(given), module.segment(gone.made)
    if gone.by is None:
        who = "the first iteration has used it up"
    else:
        who = f"line {module.location(gone.by).line} has used it up"
    return f"`{name}` is an iterator, and {who}, so nothing is clipped here. Make it a list: `{name} = list({made})`."


def _clipped_beside(trace: Trace, clip: Clip, step: Step) -> bool:
    """What is stepped has a clip of its own; this one is for an optimizer that rests in this setting: `if not frozen: other.step()`."""
    mine = trace.held_by(step.optimizer) or frozenset()
    owned = any(
        not (other.parameters or frozenset()).isdisjoint(clip.parameters or ())
        for other in trace.objects_of(Optimizer)
        if other.id != step.optimizer
    )
    before = trace.before(step).until(Backward).of(Clip)
    return owned and any(not mine.isdisjoint(other.parameters or ()) for other in before)


def _useful_elsewhere(trace: Trace, clip: Clip) -> bool:
    """Another optimizer holds the clipped parameters, has gradients for them now, and steps before they are cleared."""
    for optimizer in trace.optimizers:
        mine = trace.held_by(optimizer)
        if mine is None:
            return True
        if not mine.isdisjoint(clip.parameters or ()) and _steps_next(trace, clip, optimizer):
            return position(trace, clip, optimizer)[0] in ("fresh", "unknown")
    return False


def _steps_next(trace: Trace, clip: Clip, optimizer: str | None) -> bool:
    for event in trace.after(clip).of(Step, ZeroGrad):
        match event:
            case Step(optimizer=stepped) if stepped == optimizer:
                return True
            case ZeroGrad() if clears(trace, event, optimizer):
                return False
    return False
