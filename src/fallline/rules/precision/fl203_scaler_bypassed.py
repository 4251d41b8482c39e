"""FL203: optimizer.step() is called on scaled gradients instead of scaler.step(optimizer)."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from fallline.events import Backward, Scale, ScalerUpdate, Step, Trace, scales
from fallline.finding import Finding, Fix, Severity
from fallline.flow.scalers import stepped_past
from fallline.rule import Rule
from fallline.rules.precision._specimen import AMP
from fallline.syntax import Editor, Module


class ScalerBypassed(Rule):
    code = "FL203"
    name = "scaler-bypassed"
    severity = Severity.ERROR
    what = """\
`optimizer.step()` is called although the loss was scaled: it should be `scaler.step(optimizer)`.

`scaler.step` divides the gradients by the scale where `unscale_` has not done it yet, and leaves the step out when one of them is not finite."""
    why = """\
Without `unscale_` the gradients are 65536 times too large, and SGD takes steps that much too long; with it, an update that overflowed is no longer skipped.

The scaler provokes overflows on purpose to find the largest scale that works. One infinite gradient that is stepped puts an infinity (SGD) or a NaN (Adam) into the parameters, and the next forward pass spreads the NaN to all of them."""
    instead = """\
Let the scaler step.

```python
scaler.scale(loss).backward()
scaler.step(optimizer)
scaler.update()
```"""
    fix_safety = "The step goes through the scaler that scaled the loss; `scaler.update()` is added where it is missing."
    facts = ("scaler-bypass-loses-skipping", "loss-scale-schedule")

    def check(self, trace: Trace) -> Iterator[Finding]:
        backward: Backward | None = None
        for event, state in scales(trace):
            match event:
                case Backward(scaled=True):
                    backward = event
                case Step(via="direct") if backward is not None:
                    scale = state.get(event.optimizer, Scale.UNKNOWN)
                    if scale in {Scale.SCALED, Scale.UNSCALED}:
                        yield self._bypassed(trace, event, scale, backward)

    def check_syntax(self, module: Module) -> Iterator[Finding]:
        """Where no loop is in view: `optimizer.step()` right before `scaler.update()`, in a class or file that scales."""
        for step, scaler in stepped_past(module):
            yield self.finding(
                module.location(step),
                f"optimizer.step() bypasses `{scaler}`, which is updated right after it and scales the loss: gradients that overflowed are stepped, and scaled ones "
                f"are too large. Use {scaler}.step(optimizer).",
                severity=Severity.WARNING,
            )

    def _bypassed(self, trace: Trace, step: Step, scale: Scale, backward: Backward) -> Finding:
        update = trace.after(step).until(Backward).of(ScalerUpdate).first
        related = {"backward": backward.at, **({"update": update.at} if update is not None else {})}
        return self.finding(
            step,
            f"optimizer.step() bypasses the scaler that scaled the loss: {_harm(scale, trace.type_of(step.optimizer))}. "
            "Use scaler.step(optimizer).",
            related=related,
        )

    def fix(self, finding: Finding, module: Module) -> Fix | None:
        step = module.call_at(finding.at)
        scaler = _scaler_name(module, step) if step is not None else None
        if (
            step is None
            or scaler is None
            or step.args
            or step.keywords
            or not isinstance(step.func, ast.Attribute)
        ):
            return None
        editor = Editor(module)
        edits = [editor.replace(step, f"{scaler}.step({module.segment(step.func.value)})")]
        if "update" not in finding.related:
            statement = module.statement(step)
            if not editor.alone(statement):
                return None
            edits.append(editor.insert_after(statement, f"{scaler}.update()"))
        return Fix("Step through the scaler", tuple(edits))

    wrong = (
        AMP
        + """\
for inputs, targets in loader:
    optimizer.zero_grad()
    with torch.autocast("cpu", dtype=torch.float16):
        loss = loss_fn(model(inputs), targets)
    scaler.scale(loss).backward()
    optimizer.step()  # FL203
""",
        AMP
        + """\
for inputs, targets in loader:
    optimizer.zero_grad()
    with torch.autocast("cpu", dtype=torch.float16):
        loss = loss_fn(model(inputs), targets)
    scaler.scale(loss).backward()
    scaler.unscale_(optimizer)
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()  # FL203
    scaler.update()
""",
    )
    right = (
        AMP
        + """\
for inputs, targets in loader:
    optimizer.zero_grad()
    with torch.autocast("cpu", dtype=torch.float16):
        loss = loss_fn(model(inputs), targets)
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
""",
        # one way with the scaler, one without
        AMP
        + """\
import os

use_amp = os.environ.get("AMP") == "1"
for inputs, targets in loader:
    optimizer.zero_grad()
    if use_amp:
        with torch.autocast("cpu", dtype=torch.float16):
            loss = loss_fn(model(inputs), targets)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
    else:
        loss = loss_fn(model(inputs), targets)
        loss.backward()
        optimizer.step()
""",
        # the second optimizer belongs to a loss that is not scaled
        AMP
        + """\
probe = torch.nn.Linear(8, 2)
opt_probe = torch.optim.SGD(probe.parameters(), lr=0.1)
for inputs, targets in loader:
    optimizer.zero_grad()
    with torch.autocast("cpu", dtype=torch.float16):
        loss = loss_fn(model(inputs), targets)
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()

    opt_probe.zero_grad()
    loss_fn(probe(inputs), targets).backward()
    opt_probe.step()
""",
    )


def _scaler_name(module: Module, step: ast.Call) -> str | None:
    """What the scaler is called where this step is: the one that `.scale(...)` is called on there."""
    calls = [
        c
        for c in module.method_calls("scale")
        if len(c.args) == 1 and isinstance(c.func, ast.Attribute)
    ]
    here = {
        module.segment(c.func.value)
        for c in calls
        if isinstance(c.func, ast.Attribute) and module.scope(c) is module.scope(step)
    }
    return here.pop() if len(here) == 1 else None


def _harm(scale: Scale, optimizer: str) -> str:
    if scale is Scale.UNSCALED:
        return "a step whose gradients are inf or NaN is not skipped, and one such step is enough to put NaN into the parameters"
    if optimizer == "SGD":
        return "the gradients are still multiplied by the loss scale, so SGD's step is 65,536 times too large"
    return "the gradients are still multiplied by the loss scale, and a step that overflowed is not skipped"
