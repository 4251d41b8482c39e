"""FL204: scaler.update() never follows scaler.step()."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from fallline.events import (
    Backward,
    Opaque,
    ScalerUpdate,
    Step,
    Trace,
    Unscale,
    same_scaler,
    scaler_on,
)
from fallline.finding import Finding, Fix, Severity
from fallline.flow.interrupted import never_updated, steps_without_update
from fallline.rule import Rule
from fallline.rules.precision._specimen import AMP
from fallline.syntax import Editor, Module


class ScalerUpdateMissing(Rule):
    code = "FL204"
    name = "scaler-update-missing"
    severity = Severity.ERROR
    what = """\
`scaler.step(optimizer)` is not followed by `scaler.update()` before the same optimizer is used again.

One `update()` after all the steps of an iteration is enough, also with several optimizers."""
    why = """\
The next `unscale_` or `step` of this optimizer raises `RuntimeError`, because the scaler still remembers the last one.

It is also `update()` that lowers the scale after an overflow and raises it after 2000 clean steps."""
    instead = """\
Call `update()` once, after the last `scaler.step` of the iteration.

```python
scaler.step(optimizer)
scaler.update()
```"""
    fix_safety = "Adds the `update()` that torch requires."
    facts = ("amp-order", "loss-scale-schedule")

    def check(self, trace: Trace) -> Iterator[Finding]:
        through = [e for e in trace.of(Step) if e.via == "scaler" and scaler_on(trace, e)]
        alone = len({e.optimizer for e in through}) == 1
        for step in through:
            if step.optimizer is None or not _forgotten(trace, step):
                continue
            yield self.finding(
                step,
                "scaler.update() never follows scaler.step(), so the next unscale_ or step of this optimizer raises RuntimeError "
                "and the scale is never adjusted. Call scaler.update() after the step.",
                related={"step": step.at} if alone else {},
            )

    def check_syntax(self, module: Module) -> Iterator[Finding]:
        """A last step for what is left over, on a way out of the loop."""
        for step in steps_without_update(module):
            yield self.finding(
                module.location(step),
                "When the loop is left here, scaler.update() is not called after this scaler.step(), so the next unscale_ or step of this optimizer raises RuntimeError. "
                "Call scaler.update() after the step.",
                related={"step": module.location(step)},
            )
        for step in never_updated(module):
            yield self.finding(
                module.location(step),
                "scaler.step() is called here, and nothing in this project calls scaler.update(), so the next unscale_ or step of this optimizer raises RuntimeError. "
                "Call scaler.update() after the step.",
                severity=Severity.WARNING,
            )

    def fix(self, finding: Finding, module: Module) -> Fix | None:
        step = module.call_at(finding.at) if "step" in finding.related else None
        if (
            step is None
            or not isinstance(step.func, ast.Attribute)
            or not isinstance(module.statement(step), ast.Expr | ast.Assign)
        ):
            return None
        editor = Editor(module)
        statement = module.statement(step)
        if not editor.alone(statement):
            return None
        text = f"{module.segment(step.func.value)}.update()"
        return Fix("Update the scaler after the step", (editor.insert_after(statement, text),))

    wrong = (
        AMP
        + """\
for inputs, targets in loader:
    optimizer.zero_grad()
    with torch.autocast("cpu", dtype=torch.float16):
        loss = loss_fn(model(inputs), targets)
    scaler.scale(loss).backward()
    scaler.step(optimizer)  # FL204
""",
        AMP
        + """\
def update(loss):
    optimizer.zero_grad()
    scaler.scale(loss).backward()
    scaler.unscale_(optimizer)
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    scaler.step(optimizer)  # FL204


for epoch in range(2):
    for inputs, targets in loader:
        with torch.autocast("cpu", dtype=torch.float16):
            loss = loss_fn(model(inputs), targets)
        update(loss)
""",
    )
    right = (
        # one update for two optimizers
        """\
import torch

discriminator = torch.nn.Linear(8, 1)
generator = torch.nn.Linear(4, 8)
opt_d = torch.optim.Adam(discriminator.parameters(), lr=1e-3)
opt_g = torch.optim.Adam(generator.parameters(), lr=1e-3)
scaler = torch.amp.GradScaler("cpu")
loader = torch.utils.data.DataLoader(torch.randn(64, 8), batch_size=16)

for real in loader:
    fake = generator(torch.randn(16, 4))
    opt_d.zero_grad()
    loss_d = discriminator(fake.detach()).mean() - discriminator(real).mean()
    scaler.scale(loss_d).backward()
    scaler.step(opt_d)

    opt_g.zero_grad()
    loss_g = -discriminator(fake).mean()
    scaler.scale(loss_g).backward()
    scaler.step(opt_g)
    scaler.update()
""",
        # the update is in a helper of its own
        AMP
        + """\
def finish():
    scaler.update()
    optimizer.zero_grad()


for inputs, targets in loader:
    with torch.autocast("cpu", dtype=torch.float16):
        loss = loss_fn(model(inputs), targets)
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    finish()
""",
        # once a window
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
    )


def _forgotten(trace: Trace, step: Step) -> bool:
    """The same optimizer comes round again, or a live run continued, without an update."""
    continued = False
    for event in trace.after(step).until(Opaque).where(lambda e: same_scaler(e, step)):
        match event:
            case ScalerUpdate():
                return False
            case Unscale(optimizer=optimizer) if optimizer == step.optimizer:
                # right after the step it is FL202: an unscale_ in the wrong place, not a missing update
                return continued
            case Step(optimizer=optimizer, via="scaler") if optimizer == step.optimizer:
                return True
            case Backward():
                continued = True
    # torch raises on the second round, so a run that crashed there shows only its beginning
    ended = trace.live and not trace.after(step).of(Opaque)
    return ended and continued and not trace.of(ScalerUpdate)
