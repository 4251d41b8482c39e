"""FL302: no_sync() wraps backward but not the forward pass."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from fallline.events import Backward, Forward, Trace
from fallline.finding import Finding, Severity
from fallline.rule import Rule
from fallline.rules.distributed._specimen import DDP
from fallline.syntax import Module


class NoSyncWithoutForward(Rule):
    code = "FL302"
    name = "no-sync-without-forward"
    severity = Severity.ERROR
    what = """\
`model.no_sync()` is around `backward()` but not around the forward pass."""
    why = """\
DDP decides in the forward pass whether the backward pass will all-reduce, so this `no_sync()` does nothing: four micro-batches make four all-reduces, as without it.

The gradients come out the same; the communication that was meant to be saved is not."""
    instead = """\
Put the forward pass inside as well.

```python
with model.no_sync():
    loss = loss_fn(model(inputs), targets) / k
    loss.backward()
```"""
    facts = ("no-sync-needs-the-forward",)

    def check(self, trace: Trace) -> Iterator[Finding]:
        inside = False  # a forward pass since the last backward was itself in no_sync
        for event in trace.of(Forward, Backward):
            match event:
                case Forward():
                    inside = inside or event.no_sync is True
                case Backward(no_sync=True, sync=True, wrapper="ddp") if not inside:
                    yield self.finding(
                        event,
                        "no_sync() is around backward() but not around the forward pass, where DDP decides whether to all-reduce, so it saves nothing. "
                        "Move the forward pass inside.",
                    )
                case Backward():
                    inside = False

    def check_syntax(self, module: Module) -> Iterator[Finding]:
        """A helper that is given the loss: whatever made it ran before this no_sync()."""
        alone = [s for s in module.all(ast.With) if _only_backward(module, s)]
        if len(alone) < len(list(module.method_calls("no_sync"))):
            return  # another one may be around the forward pass
        for block in alone:
            yield self.finding(
                module.location(block.body[0]),
                "no_sync() is around backward() but not around the forward pass, where DDP decides whether to all-reduce, so it saves nothing. "
                "Move the forward pass inside.",
                presuming="no caller runs the forward pass inside no_sync()",
            )

    wrong = (
        DDP
        + """\
optimizer.zero_grad()
for i, (inputs, targets) in enumerate(loader):
    last = (i + 1) % 2 == 0 or i + 1 == len(loader)
    loss = loss_fn(model(inputs), targets) / 2
    if last:
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    else:
        with model.no_sync():
            loss.backward()  # FL302
""",
        DDP
        + """\
import contextlib

for inputs, targets in loader:
    optimizer.zero_grad()
    for micro in range(4):
        loss = loss_fn(model(inputs[micro::4]), targets[micro::4]) / 4
        with model.no_sync() if micro < 3 else contextlib.nullcontext():
            loss.backward()  # FL302
    optimizer.step()
""",
    )
    right = (
        DDP
        + """\
optimizer.zero_grad()
for i, (inputs, targets) in enumerate(loader):
    if (i + 1) % 2 == 0 or i + 1 == len(loader):
        loss = loss_fn(model(inputs), targets) / 2
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    else:
        with model.no_sync():
            loss = loss_fn(model(inputs), targets) / 2
            loss.backward()
""",
        # the forward pass alone is enough
        DDP
        + """\
import contextlib

for inputs, targets in loader:
    optimizer.zero_grad()
    for micro in range(4):
        with model.no_sync() if micro < 3 else contextlib.nullcontext():
            loss = loss_fn(model(inputs[micro::4]), targets[micro::4]) / 4
        loss.backward()
    optimizer.step()
""",
        # a context in a helper
        DDP
        + """\
import contextlib


def maybe_sync(last):
    return contextlib.nullcontext() if last else model.no_sync()


for inputs, targets in loader:
    optimizer.zero_grad()
    for micro in range(4):
        with maybe_sync(micro == 3):
            loss = loss_fn(model(inputs[micro::4]), targets[micro::4]) / 4
            loss.backward()
    optimizer.step()
""",
    )


def _only_backward(module: Module, block: ast.With) -> bool:
    """`with model.no_sync(): loss.backward()`, where the loss is an argument of this function."""
    match block.items, block.body:
        case [ast.withitem(ast.Call(ast.Attribute(attr="no_sync")))], [
            ast.Expr(ast.Call(ast.Attribute(ast.Name(loss), "backward")))
        ]:
            function = module.function(block)
            args = function.args if function is not None else None
            return args is not None and loss in {a.arg for a in [*args.args, *args.kwonlyargs]}
    return False
