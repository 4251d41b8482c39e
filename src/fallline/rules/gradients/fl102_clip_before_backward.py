"""FL102: gradients are clipped before backward has produced them."""

from __future__ import annotations

from collections.abc import Iterator

from fallline.events import (
    Backward,
    Clip,
    GradWrite,
    Opaque,
    Step,
    Trace,
    acting,
    clears,
    misdirected,
    owners,
    position,
)
from fallline.finding import Finding, Fix, Severity
from fallline.rule import Rule
from fallline.rules.gradients._moves import moved_before_step
from fallline.rules.gradients._specimens import SETUP
from fallline.syntax import Module

__all__ = ["ClipBeforeBackward"]


class ClipBeforeBackward(Rule):
    code = "FL102"
    name = "clip-before-backward"
    severity = Severity.ERROR
    what = "Finds gradient clipping that runs before `backward()` has produced this update's gradients."
    why = (
        "There is nothing to clip yet: after `zero_grad()` the call does nothing and returns 0 without a warning, and the update "
        "that follows is not clipped. Where old gradients are still there, it shrinks those."
    )
    instead = "Clip between `backward()` and `step()`:\n\n```python\nloss.backward()\ntorch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)\noptimizer.step()\n```"
    fix_safety = "The clip moves right before the step, when both are in one block."
    facts = ("clip-before-backward",)
    tokens = (b"clip",)

    def check(self, trace: Trace) -> Iterator[Finding]:
        for clip in trace.of(Clip).first_of_each():
            if clip.measures_only or clip.closure or misdirected(trace, clip):
                continue
            step = _unclipped_step(trace, clip)
            if step is not None:
                yield self.finding(
                    clip,
                    "Gradients are clipped before backward() has produced them, so there is nothing to clip and the step at "
                    f"{step.at.near(clip.at)} uses them unclipped. Move the clip between backward() and step().",
                    related={"step": step.at},
                )

    def fix(self, finding: Finding, module: Module) -> Fix | None:
        return moved_before_step(module, finding, "Clip between backward and the step")

    wrong = (
        SETUP
        + """
for epoch in range(2):
    for x, y in loader:
        optimizer.zero_grad()
        loss = loss_fn(model(x), y)
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)  # FL102
        loss.backward()
        optimizer.step()
""",
        SETUP
        + """

def train_one_epoch(model, loader, optimizer):
    model.train()
    for x, y in loader:
        nn.utils.clip_grad_norm_(model.parameters(), max_norm=1.0)  # FL102
        loss = loss_fn(model(x), y)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()


for epoch in range(3):
    train_one_epoch(model, loader, optimizer)
""",
    )
    right = (
        SETUP
        + """
for epoch in range(2):
    for x, y in loader:
        optimizer.zero_grad()
        loss = loss_fn(model(x), y)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
""",
        # a helper that finishes the last update first: its clip and step belong together
        SETUP
        + """

def finish_update():
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad()


for epoch in range(2):
    for x, y in loader:
        finish_update()
        loss_fn(model(x), y).backward()
    finish_update()
""",
        # gradients written by hand need no backward()
        SETUP
        + """
for epoch in range(2):
    for x, y in loader:
        gradients = torch.autograd.grad(loss_fn(model(x), y), list(model.parameters()))
        for parameter, gradient in zip(model.parameters(), gradients):
            parameter.grad = gradient
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
""",
    )


def _unclipped_step(trace: Trace, clip: Clip) -> Step | None:
    """The step that takes unclipped gradients because this clip came before their backward."""
    mine = owners(trace, clip) or _meant(trace, clip)
    steps = [_step_after_backward(trace, clip, o) for o in mine]
    return steps[-1] if steps and None not in steps else None


def _meant(trace: Trace, clip: Clip) -> list[str | None]:
    """Whose clip this is where nothing says so: the optimizer that steps next, if no other one uses what is clipped here."""
    step, several = trace.after(clip).of(Step).first, acting(trace, clip)
    if step is None or step.optimizer not in several:
        return []
    others = [o for o in several if o != step.optimizer]
    return [] if any(_uses(trace, clip, o) for o in others) else [step.optimizer]


def _uses(trace: Trace, clip: Clip, optimizer: str | None) -> bool:
    """The next step of this optimizer takes what this clip leaves: nothing clears or clips in between."""
    for event in trace.after(clip):
        match event:
            case Step(optimizer=stepped) if stepped == optimizer:
                return True
            case Clip():
                return False
            case _ if clears(trace, event, optimizer):
                return False
    return False


def _step_after_backward(trace: Trace, clip: Clip, optimizer: str | None) -> Step | None:
    """The optimizer's next step, when the clip comes before any backward and one comes between the two."""
    if position(trace, clip, optimizer)[0] != "before":
        return None
    produced = False
    for event in trace.after(clip):
        match event:
            case Backward() if trace.concerns(event, optimizer):
                produced = True
            case Step(optimizer=stepped) if stepped == optimizer:
                return event if produced and not event.closure else None
            case GradWrite() | Opaque() if not produced:
                return None
    return None
