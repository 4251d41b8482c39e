"""FL110: .grad is divided inside the accumulation."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from fallline.events import GradWrite, Trace, windows
from fallline.finding import Finding, Fix, Severity
from fallline.rule import Rule
from fallline.rules.gradients._moves import lone_statement, steps_once, way_in
from fallline.rules.gradients._specimens import SETUP
from fallline.syntax import Editor, Module

__all__ = ["GradientDividedRepeatedly"]


class GradientDividedRepeatedly(Rule):
    code = "FL110"
    name = "gradient-divided-repeatedly"
    severity = Severity.ERROR
    what = (
        "Finds `.grad` being divided after every micro-batch of an accumulation, instead of once."
    )
    why = (
        "`.grad` holds the sum so far, so the first micro-batch is divided k times, the next one k - 1 times, and so on. For k = 4 "
        "their weights are 1/256, 1/64, 1/16 and 1/4: the update has a different length and a different direction."
    )
    instead = "Divide the loss of each micro-batch, or the gradient once, right before the step:\n\n```python\n(loss / accumulation_steps).backward()\n```"
    fix_safety = "The division moves into the boundary test, before everything else there; only where it is a loop of its own over the parameters."
    facts = ("dividing-gradients-each-time-compounds", "dividing-gradients-once-is-exact")
    tokens = (b".grad",)

    def check(self, trace: Trace) -> Iterator[Finding]:
        for window in windows(trace):
            for write in window.inside.of(GradWrite):
                if write.op in ("div", "mul"):
                    yield self.finding(
                        write,
                        "The gradient is divided after every micro-batch, so early micro-batches are divided again and again: with four of them their weights "
                        f"are 1/256, 1/64, 1/16 and 1/4. Divide the loss instead, or the gradient once, before the step at {window.step.at.near(write.at)}.",
                        related={"step": window.step.at},
                    )

    def fix(self, finding: Finding, module: Module) -> Fix | None:
        write = lone_statement(module, finding.at)
        step = lone_statement(module, finding.related.get("step"))
        if write is None or step is None:
            return None
        editor = Editor(module)
        loop = _own_loop(module, write)
        if loop is None or not editor.alone(loop):
            return None
        block = editor.block_of(loop)
        around = way_in(module, block, step)
        inner = editor.block_of(step)
        if around is None or around is step or not steps_once(block, step):
            return None
        if block.index(around) < block.index(loop) or not editor.alone(inner[0]):
            return None
        return Fix("Divide the gradient once, before the step", editor.move_before(loop, inner[0]))

    wrong = (
        SETUP
        + """
accumulation_steps = 2
for epoch in range(2):
    for i, (x, y) in enumerate(loader):
        loss_fn(model(x), y).backward()
        for parameter in model.parameters():
            parameter.grad /= accumulation_steps  # FL110
        if (i + 1) % accumulation_steps == 0 or i + 1 == len(loader):
            optimizer.step()
            optimizer.zero_grad()
""",
        SETUP
        + """

def average(model, count):
    for parameter in model.parameters():
        if parameter.grad is not None:
            parameter.grad.div_(count)  # FL110


def train(model, loader, optimizer, pieces):
    for x, y in loader:
        optimizer.zero_grad()
        for small_x, small_y in zip(x.chunk(pieces), y.chunk(pieces)):
            loss_fn(model(small_x), small_y).backward()
            average(model, pieces)
        optimizer.step()


for epoch in range(2):
    train(model, loader, optimizer, 2)
""",
    )
    right = (
        SETUP
        + """
accumulation_steps = 2
for epoch in range(2):
    for i, (x, y) in enumerate(loader):
        loss_fn(model(x), y).backward()
        if (i + 1) % accumulation_steps == 0 or i + 1 == len(loader):
            for parameter in model.parameters():
                parameter.grad /= accumulation_steps
            optimizer.step()
            optimizer.zero_grad()
""",
        # one backward, one division, one step
        SETUP
        + """
for epoch in range(2):
    for x, y in loader:
        optimizer.zero_grad()
        nn.functional.mse_loss(model(x), y, reduction="sum").backward()
        for parameter in model.parameters():
            parameter.grad.div_(len(x))
        optimizer.step()
""",
        SETUP
        + """
accumulation_steps = 2
for epoch in range(2):
    for i, (x, y) in enumerate(loader):
        (loss_fn(model(x), y) / accumulation_steps).backward()
        if (i + 1) % accumulation_steps == 0 or i + 1 == len(loader):
            optimizer.step()
            optimizer.zero_grad()
""",
    )


def _own_loop(module: Module, write: ast.stmt) -> ast.For | None:
    """The loop over parameters that does nothing but this, perhaps behind `if p.grad is not None`."""
    up = module.parent(write)
    if isinstance(up, ast.If) and up.body == [write] and not up.orelse:
        write, up = up, module.parent(up)
    return up if isinstance(up, ast.For) and up.body == [write] and not up.orelse else None
