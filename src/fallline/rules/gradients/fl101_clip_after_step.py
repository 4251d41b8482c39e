"""FL101: gradients are clipped after the step that consumed them."""

from __future__ import annotations

from collections.abc import Iterator

from fallline.events import Backward, Clip, Step, Trace, ZeroGrad, misdirected, owners, position
from fallline.finding import Finding, Fix, Severity
from fallline.rule import Rule
from fallline.rules.gradients._moves import moved_before_step
from fallline.rules.gradients._specimens import SETUP
from fallline.syntax import Module

__all__ = ["ClipAfterStep"]


class ClipAfterStep(Rule):
    code = "FL101"
    name = "clip-after-step"
    severity = Severity.ERROR
    yields_to = ("FL102",)
    yields_within = "line"
    what = (
        "Finds gradient clipping that runs after the `optimizer.step()` that used those gradients."
    )
    why = (
        "The step has already been taken with the unclipped gradients. Followed by `zero_grad()`, the clip changes nothing at "
        "all: the parameters are bit for bit those of a run without it. Without `zero_grad()` it changes later updates instead."
    )
    instead = "Clip between `backward()` and `step()`:\n\n```python\nloss.backward()\ntorch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)\noptimizer.step()\n```"
    fix_safety = "The clip moves before the step it follows, when both are in one block."
    facts = ("clip-after-step",)
    tokens = (b"clip",)

    def check(self, trace: Trace) -> Iterator[Finding]:
        for clip in trace.of(Clip).first_of_each():
            if clip.measures_only or clip.closure or misdirected(trace, clip):
                continue
            step = _step_before(trace, clip)
            if step is not None:
                yield self.finding(
                    clip,
                    f"Gradients are clipped after the step at {step.at.near(clip.at)} has used them, so that update was not clipped. "
                    "Move the clip between backward() and step().",
                    related={"step": step.at},
                )

    def fix(self, finding: Finding, module: Module) -> Fix | None:
        return moved_before_step(module, finding, "Clip before the step")

    wrong = (
        SETUP
        + """
for epoch in range(2):
    for x, y in loader:
        optimizer.zero_grad()
        loss = loss_fn(model(x), y)
        loss.backward()
        optimizer.step()
        torch.nn.utils.clip_grad_norm_(model.parameters(), max_norm=1.0)  # FL101
""",
        SETUP
        + """

class Trainer:
    def __init__(self, model, optimizer):
        self.model = model
        self.optimizer = optimizer

    def train_step(self, x, y):
        loss = loss_fn(self.model(x), y)
        loss.backward()
        self.optimizer.step()
        nn.utils.clip_grad_norm_(self.model.parameters(), 0.5)  # FL101
        self.optimizer.zero_grad()

    def fit(self, loader, epochs):
        for epoch in range(epochs):
            for x, y in loader:
                self.train_step(x, y)


Trainer(model, optimizer).fit(loader, 2)
""",
        SETUP
        + """

def clip(module, limit):
    nn.utils.clip_grad_norm_(module.parameters(), limit)  # FL101


for epoch in range(2):
    for i, (x, y) in enumerate(loader):
        loss = loss_fn(model(x), y) / 2
        loss.backward()
        if (i + 1) % 2 == 0 or i + 1 == len(loader):
            optimizer.step()
            clip(model, 1.0)
            optimizer.zero_grad()
""",
    )
    right = (
        SETUP
        + """
for epoch in range(2):
    for x, y in loader:
        optimizer.zero_grad()
        loss_fn(model(x), y).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), max_norm=1.0)
        optimizer.step()
""",
        # two optimizers: the second clip follows the first step and is its own
        SETUP
        + """
head = nn.Linear(1, 1)
head_optimizer = torch.optim.SGD(head.parameters(), lr=0.01)

for epoch in range(2):
    for x, y in loader:
        optimizer.zero_grad()
        head_optimizer.zero_grad()
        loss_fn(head(model(x)), y).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        torch.nn.utils.clip_grad_norm_(head.parameters(), 1.0)
        head_optimizer.step()
""",
        # the norm is measured, not clipped
        SETUP
        + """
norms = []
for epoch in range(2):
    for x, y in loader:
        loss_fn(model(x), y).backward()
        optimizer.step()
        norms.append(torch.nn.utils.clip_grad_norm_(model.parameters(), float("inf")))
        optimizer.zero_grad()
""",
        # the step of one iteration is at the top of the next
        SETUP
        + """
steps = 0
for epoch in range(2):
    for x, y in loader:
        if steps > 0:
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
        loss_fn(model(x), y).backward()
        steps += 1
torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
optimizer.step()
""",
    )


def _step_before(trace: Trace, clip: Clip) -> Step | None:
    """The step that used the gradients before this clip, for every optimizer the clip is about."""
    steps: list[Step] = []
    following = trace.after(clip).of(Backward, Step, ZeroGrad).first
    if isinstance(following, Step) and _may_use(trace, following, clip):
        return None  # that step is meant; in this setting there was nothing to go backward through
    for optimizer in owners(trace, clip):
        where, step = position(trace, clip, optimizer)
        if where in ("fresh", "unknown") or (step is not None and step.closure):
            return None
        if step is not None:
            steps.append(step)
    return max(steps, key=lambda e: e.order, default=None)


def _may_use(trace: Trace, step: Step, clip: Clip) -> bool:
    held = step.parameters or trace.held_by(step.optimizer)
    return not held or not clip.parameters or not held.isdisjoint(clip.parameters)
