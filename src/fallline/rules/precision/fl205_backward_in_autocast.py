"""FL205: backward runs under autocast."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from fallline.events import Backward, Trace
from fallline.finding import Finding, Fix, Severity
from fallline.flow.calls import last_name
from fallline.rule import Rule
from fallline.rules._reindent import reindented
from fallline.rules.precision._specimen import AMP
from fallline.syntax import Editor, Module

_AUTOCAST = frozenset(
    {"torch.autocast", "torch.amp.autocast", "torch.cuda.amp.autocast", "torch.cpu.amp.autocast"}
)
# What may leave the block together with the backward: none of it computes anything under autocast.
_HARMLESS = frozenset(
    [
        "backward",
        "scale",
        "step",
        "update",
        "unscale_",
        "zero_grad",
        "clip_grad_norm_",
        "clip_grad_value_",
        "parameters",
        "item",
        "detach",
        "append",
        "print",
        "get_last_lr",
        "set_postfix",
        "set_description",
        "add_scalar",
        "log",
        "info",
        "synchronize",
    ]
)


class BackwardInAutocast(Rule):
    code = "FL205"
    name = "backward-in-autocast"
    severity = Severity.INFO  # torch's own layers give the same gradients either way
    what = """\
`backward()` is called inside the `autocast` block.

Autocast belongs around the forward pass and the loss. Each backward operation already runs in the type its forward operation used."""
    why = """\
Every operation that a backward pass computes by itself is cast to half precision a second time: hand-written autograd functions, hooks, double backward, recomputed checkpoints.

torch's own layers give the same gradients either way, so the mistake shows only once one of these is in the model; torch advises against it."""
    instead = """\
End the `autocast` block before `backward()`.

```python
with torch.autocast("cuda", dtype=torch.float16):
    loss = loss_fn(model(inputs), targets)
scaler.scale(loss).backward()
```"""
    fix_safety = "Moves the backward, and only bookkeeping that follows it, out of the block."
    references = ("https://docs.pytorch.org/docs/stable/amp.html#autocasting",)

    def check(self, trace: Trace) -> Iterator[Finding]:
        for backward in trace.of(Backward):
            if backward.autocast in {"float16", "bfloat16", "half"}:
                yield self.finding(
                    backward,
                    f"backward() runs under autocast ({backward.autocast.replace('half', 'half precision')}), so custom autograd functions, hooks and double backward "
                    "are cast to half precision. End the autocast block before backward().",
                )

    def fix(self, finding: Finding, module: Module) -> Fix | None:
        backward = module.call_at(finding.at) or _backward_on(module, finding.at.line)
        if backward is None:
            return None
        statement = module.statement(backward)
        block = module.parent(statement)
        if (
            not isinstance(block, ast.With)
            or len(block.items) != 1
            or block.items[0].optional_vars is not None
        ):
            return None
        context = block.items[0].context_expr
        if not isinstance(context, ast.Call) or module.resolve(context.func) not in _AUTOCAST:
            return None
        rest = block.body[block.body.index(statement) :]
        if len(rest) == len(block.body) or not all(_is_bookkeeping(s) for s in rest):
            return None
        editor = Editor(module)
        moved = reindented(editor, rest, editor.indent(block))
        return (
            Fix("End the autocast block before backward", (moved,)) if moved is not None else None
        )

    wrong = (
        AMP
        + """\
for inputs, targets in loader:
    optimizer.zero_grad()
    with torch.autocast("cpu", dtype=torch.float16):
        loss = loss_fn(model(inputs), targets)
        scaler.scale(loss).backward()  # FL205
    scaler.step(optimizer)
    scaler.update()
""",
        AMP
        + """\
def train_step(inputs, targets):
    optimizer.zero_grad()
    loss = loss_fn(model(inputs), targets)
    loss.backward()  # FL205
    optimizer.step()


with torch.autocast("cpu", dtype=torch.bfloat16):
    for inputs, targets in loader:
        train_step(inputs, targets)
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
        # autocast that is off
        AMP
        + """\
for inputs, targets in loader:
    optimizer.zero_grad()
    with torch.autocast("cpu", enabled=False):
        loss = loss_fn(model(inputs), targets)
        loss.backward()
    optimizer.step()
""",
        # autocast is inside the model's forward, and ends there
        """\
import torch


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(8, 2)

    @torch.autocast("cpu", dtype=torch.bfloat16)
    def forward(self, inputs):
        return self.layer(inputs)


model = Net()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for inputs in torch.utils.data.DataLoader(torch.randn(64, 8), batch_size=16):
    optimizer.zero_grad()
    model(inputs).float().pow(2).mean().backward()
    optimizer.step()
""",
        # the backward runs with autocast turned off again
        AMP
        + """\
with torch.autocast("cpu", dtype=torch.bfloat16):
    for inputs, targets in loader:
        optimizer.zero_grad()
        loss = loss_fn(model(inputs), targets)
        with torch.autocast("cpu", enabled=False):
            loss.backward()
            optimizer.step()
""",
    )


def _backward_on(module: Module, line: int) -> ast.Call | None:
    found = [
        c for c in module.method_calls("backward") if c.lineno <= line <= (c.end_lineno or c.lineno)
    ]
    return found[0] if len(found) == 1 else None


def _is_bookkeeping(statement: ast.stmt) -> bool:
    for node in ast.walk(statement):
        match node:
            case ast.Call() if last_name(node) not in _HARMLESS:
                return False
            case ast.MatMult() | ast.Return() | ast.Await() | ast.Yield():
                return False
    return True
