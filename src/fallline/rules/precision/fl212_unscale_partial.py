"""FL212: unscale_ inside the accumulation window."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from fallline.events import Backward, Scale, Step, Trace, Unscale, ZeroGrad, reaches, scales
from fallline.finding import Edit, Finding, Fix, Severity
from fallline.rule import Rule
from fallline.rules.precision._specimen import AMP
from fallline.syntax import Editor, Module


class UnscalePartial(Rule):
    code = "FL212"
    name = "unscale-partial"
    severity = Severity.ERROR
    what = """\
`unscale_` is called inside the accumulation window, and more scaled gradients are added afterwards."""
    why = """\
The sum mixes gradients that were divided by the scale with gradients that were not, which are 65536 times larger: the earlier micro-batches no longer count.

A second `unscale_` in the same window raises `RuntimeError`."""
    instead = """\
Unscale once, at the end of the window, just before clipping and the step.

```python
scaler.scale(loss / k).backward()
if (i + 1) % k == 0:
    scaler.unscale_(optimizer)
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    scaler.step(optimizer)
    scaler.update()
    optimizer.zero_grad()
```"""
    fix_safety = "Moves the call to where the window ends."
    facts = ("unscale-twice-raises", "update-once-per-window")

    def check(self, trace: Trace) -> Iterator[Finding]:
        last: dict[str | None, Unscale] = {}
        before: dict[str | None, set[object]] = {}
        for event, state in scales(trace):
            match event:
                case Step() | ZeroGrad():
                    for optimizer in [o for o in before if trace.concerns(event, o)]:
                        before[optimizer].clear()
                case Unscale() if state.get(event.optimizer) is Scale.SCALED:
                    last[event.optimizer] = event
                case Backward():
                    for optimizer in [o for o in state if trace.concerns(event, o)]:
                        again = event.loss in before.setdefault(optimizer, set())
                        mixes = event.scaled is True and state[optimizer] is Scale.UNSCALED
                        if (
                            mixes
                            and optimizer in last
                            and (again or reaches(trace, event, optimizer))
                        ):
                            yield self._partial(trace, last[optimizer])
                        before[optimizer].add(event.loss)

    def _partial(self, trace: Trace, unscale: Unscale) -> Finding:
        step = trace.after(unscale).of(Step).where(lambda e: e.optimizer == unscale.optimizer).first
        return self.finding(
            unscale,
            "unscale_ runs inside the accumulation window and scaled gradients are added afterwards, so these outweigh the unscaled ones by the loss scale "
            "(and a second unscale_ in the window raises RuntimeError). Unscale once, just before the step.",
            related={"step": step.at} if step is not None else {},
        )

    def fix(self, finding: Finding, module: Module) -> Fix | None:
        place = finding.related.get("step")
        step = module.call_at(place) if place is not None and place.path == module.path else None
        call = module.call_at(finding.at)
        if step is None or call is None:
            return None
        editor = Editor(module)
        statement = module.statement(call)
        if not editor.alone(statement):
            return None
        edits = _into_boundary(editor, statement, module.statement(step)) or _after_loop(
            editor, statement, module.statement(step)
        )
        return Fix("Unscale at the end of the window", edits) if edits else None

    wrong = (
        AMP
        + """\
optimizer.zero_grad()
for i, (inputs, targets) in enumerate(loader):
    with torch.autocast("cpu", dtype=torch.float16):
        loss = loss_fn(model(inputs), targets) / 2
    scaler.scale(loss).backward()
    scaler.unscale_(optimizer)  # FL212
    if (i + 1) % 2 == 0 or i + 1 == len(loader):
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
""",
        AMP
        + """\
for inputs, targets in loader:
    optimizer.zero_grad()
    for micro, wanted in zip(inputs.chunk(4), targets.chunk(4)):
        with torch.autocast("cpu", dtype=torch.float16):
            loss = loss_fn(model(micro), wanted) / 4
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)  # FL212
    scaler.step(optimizer)
    scaler.update()
""",
    )
    right = (
        AMP
        + """\
optimizer.zero_grad()
for i, (inputs, targets) in enumerate(loader):
    with torch.autocast("cpu", dtype=torch.float16):
        loss = loss_fn(model(inputs), targets) / 2
    scaler.scale(loss).backward()
    if (i + 1) % 2 == 0 or i + 1 == len(loader):
        scaler.unscale_(optimizer)
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
""",
        AMP
        + """\
for inputs, targets in loader:
    optimizer.zero_grad()
    for micro, wanted in zip(inputs.chunk(4), targets.chunk(4)):
        with torch.autocast("cpu", dtype=torch.float16):
            loss = loss_fn(model(micro), wanted) / 4
        scaler.scale(loss).backward()
    scaler.unscale_(optimizer)
    scaler.step(optimizer)
    scaler.update()
""",
        # the unscaled gradients of one optimizer, the scaled ones of another
        """\
import torch

discriminator = torch.nn.Linear(8, 1)
generator = torch.nn.Linear(4, 8)
opt_d = torch.optim.Adam(discriminator.parameters(), lr=1e-3)
opt_g = torch.optim.Adam(generator.parameters(), lr=1e-3)
scaler = torch.amp.GradScaler("cpu")
loader = torch.utils.data.DataLoader(torch.randn(64, 8), batch_size=16)

for real in loader:
    opt_d.zero_grad()
    opt_g.zero_grad()
    fake = generator(torch.randn(16, 4))
    loss_g = fake.pow(2).mean()
    scaler.scale(loss_g).backward()
    scaler.unscale_(opt_g)
    loss_d = discriminator(fake.detach()).mean() - discriminator(real).mean()
    scaler.scale(loss_d).backward()
    scaler.unscale_(opt_d)
    scaler.step(opt_g)
    scaler.step(opt_d)
    scaler.update()
""",
    )


def _into_boundary(editor: Editor, statement: ast.stmt, step: ast.stmt) -> tuple[Edit, ...] | None:
    """`unscale_` just before the `if` that holds the step: to the top of that branch."""
    boundary, block = editor.module.parent(step), editor.block_of(statement)
    following = block[block.index(statement) + 1 :]
    if not isinstance(boundary, ast.If) or step not in boundary.body or following[:1] != [boundary]:
        return None
    return editor.move_before(statement, boundary.body[0])


def _after_loop(editor: Editor, statement: ast.stmt, step: ast.stmt) -> tuple[Edit, ...] | None:
    """`unscale_` at the end of the loop over micro-batches that the step follows: behind the loop."""
    loop = editor.module.parent(statement)
    if not isinstance(loop, ast.For) or loop.body[-1] is not statement or len(loop.body) == 1:
        return None
    return editor.move_after(statement, loop) if step in editor.block_of(loop) else None
