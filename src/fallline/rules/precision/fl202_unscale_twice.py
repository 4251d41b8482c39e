"""FL202: unscale_ is called twice for one optimizer in one update."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from fallline.events import Opaque, ScalerUpdate, Step, Trace, Unscale, scaler_on
from fallline.finding import Finding, Fix, Severity
from fallline.rule import Rule
from fallline.rules.precision._specimen import AMP
from fallline.syntax import Editor, Module


class UnscaleTwice(Rule):
    code = "FL202"
    name = "unscale-twice"
    severity = Severity.ERROR
    yields_to = ("FL204", "FL212")
    what = """\
`scaler.unscale_` is called a second time for one optimizer before `scaler.update()`.

`scaler.step` unscales by itself where nothing did before, so an `unscale_` after it is a second one as well."""
    why = """\
torch raises `RuntimeError: unscale_() has already been called on this optimizer since the last update()`.

The gradients are not divided twice; the run stops."""
    instead = """\
Call `unscale_` once for each optimizer and update, before everything that needs true gradients: clipping, logging, a gradient penalty.

```python
scaler.unscale_(optimizer)
norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
scaler.step(optimizer)
scaler.update()
```"""
    fix_safety = "Removes the second call, which can only raise."
    facts = ("unscale-twice-raises",)

    def check(self, trace: Trace) -> Iterator[Finding]:
        done: dict[tuple[str | None, str], Unscale | Step] = {}
        for event in trace.of(Unscale, Step, ScalerUpdate, Opaque):
            match event:
                case Opaque():
                    done.clear()
                case ScalerUpdate(scaler=scaler):
                    done = {k: e for k, e in done.items() if scaler is not None and k[0] != scaler}
                case Unscale(optimizer=str(optimizer)) if scaler_on(trace, event):
                    key = (event.scaler, optimizer)
                    if key in done:
                        yield self._second(event, done[key])
                    else:
                        done[key] = event
                case Step(optimizer=str(optimizer), via="scaler") if scaler_on(trace, event):
                    done[event.scaler, optimizer] = event

    def _second(self, event: Unscale, earlier: Unscale | Step) -> Finding:
        if isinstance(earlier, Step):
            return self.finding(
                event,
                f"unscale_ comes after scaler.step ({earlier.at.near(event.at)}), which has already unscaled the gradients, so torch raises "
                "RuntimeError. Move it before the step.",
            )
        return self.finding(
            event,
            f"unscale_ was already called for this optimizer ({earlier.at.near(event.at)}) and no scaler.update() came between, so "
            "torch raises RuntimeError. Unscale once for each update.",
            related={"unscale": earlier.at},
        )

    def fix(self, finding: Finding, module: Module) -> Fix | None:
        first = finding.related.get("unscale")
        if first is None or first.path != module.path or first.line == finding.at.line:
            return None
        editor = Editor(module)
        a, b = editor.statement_at(first.line), editor.statement_at(finding.at.line)
        if a is None or b is None or not editor.alone(b):
            return None
        # the first is certain to have run where the second does: in its own block, or in a branch below it
        branches = [up for up in module.parents(b) if isinstance(up, ast.If | ast.With)]
        if module.scope(a) is not module.scope(b) or not any(
            s in editor.block_of(a) for s in [b, *branches]
        ):
            return None
        return Fix("Remove the second unscale_", (editor.delete(b),))

    wrong = (
        AMP
        + """\
for inputs, targets in loader:
    optimizer.zero_grad()
    with torch.autocast("cpu", dtype=torch.float16):
        loss = loss_fn(model(inputs), targets)
    scaler.scale(loss).backward()
    scaler.unscale_(optimizer)
    norm = sum(p.grad.norm() for p in model.parameters())
    scaler.unscale_(optimizer)  # FL202
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    scaler.step(optimizer)
    scaler.update()
""",
        AMP
        + """\
def clip(optimizer, limit):
    scaler.unscale_(optimizer)  # FL202
    torch.nn.utils.clip_grad_norm_(model.parameters(), limit)


for inputs, targets in loader:
    optimizer.zero_grad()
    with torch.autocast("cpu", dtype=torch.float16):
        loss = loss_fn(model(inputs), targets)
    scaler.scale(loss).backward()
    scaler.unscale_(optimizer)
    clip(optimizer, 1.0)
    scaler.step(optimizer)
    scaler.update()
""",
    )
    right = (
        # one for each of two optimizers
        AMP
        + """\
head = torch.nn.Linear(2, 2)
opt_head = torch.optim.SGD(head.parameters(), lr=0.1)
for inputs, targets in loader:
    optimizer.zero_grad()
    opt_head.zero_grad()
    with torch.autocast("cpu", dtype=torch.float16):
        loss = loss_fn(head(model(inputs)), targets)
    scaler.scale(loss).backward()
    scaler.unscale_(optimizer)
    scaler.unscale_(opt_head)
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    scaler.step(optimizer)
    scaler.step(opt_head)
    scaler.update()
""",
        # two calls in exclusive branches
        AMP
        + """\
import os

by_value = os.environ.get("CLIP") == "value"
for inputs, targets in loader:
    optimizer.zero_grad()
    with torch.autocast("cpu", dtype=torch.float16):
        loss = loss_fn(model(inputs), targets)
    scaler.scale(loss).backward()
    if by_value:
        scaler.unscale_(optimizer)
        torch.nn.utils.clip_grad_value_(model.parameters(), 0.5)
    else:
        scaler.unscale_(optimizer)
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    scaler.step(optimizer)
    scaler.update()
""",
        # a disabled scaler ignores both
        AMP
        + """\
scaler = torch.amp.GradScaler("cpu", enabled=False)
for inputs, targets in loader:
    optimizer.zero_grad()
    loss = loss_fn(model(inputs), targets)
    scaler.scale(loss).backward()
    scaler.unscale_(optimizer)
    scaler.unscale_(optimizer)
    scaler.step(optimizer)
    scaler.update()
""",
    )
