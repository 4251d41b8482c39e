"""FL301: DDP all-reduces on every micro-batch of an accumulation."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from fallline.events import Backward, Forward, Trace, Update, ZeroGrad
from fallline.finding import Edit, Finding, Fix, Severity
from fallline.flow.calls import names_in
from fallline.flow.recording import never_entered
from fallline.rule import Rule
from fallline.rules._reindent import reindented
from fallline.rules.distributed._specimen import DDP
from fallline.syntax import Editor, Module
from fallline.syntax.nodes import below


class SyncEveryMicroStep(Rule):
    code = "FL301"
    name = "sync-every-micro-step"
    severity = Severity.WARNING
    yields_to = ("FL302",)
    what = """\
DDP all-reduces the gradients after every micro-batch of an accumulation, although only the sum is stepped."""
    why = """\
With k micro-batches the same gradients are sent k times: four all-reduces where one would do, four times the bytes.

The result is the same; the time is not. How much it costs depends on how much of the communication the backward pass hides."""
    instead = """\
Run the forward and the backward pass of all micro-batches but the last one inside `no_sync()`.

```python
for i, (inputs, targets) in enumerate(loader):
    last = (i + 1) % k == 0 or i + 1 == len(loader)
    with contextlib.nullcontext() if last else model.no_sync():
        loss = loss_fn(model(inputs), targets) / k
        loss.backward()
    if last:
        optimizer.step()
        optimizer.zero_grad()
```"""
    fix_safety = "The last micro-batch before each step still synchronises, so the step sees the same gradients."
    facts = (
        "no-sync-needs-the-forward",
        "no-sync-traffic",
        "no-sync-speedup",
        "ddp-accumulation-averages",
    )

    def check(self, trace: Trace) -> Iterator[Finding]:
        for update in trace.updates:
            for backward in _synced_again(update):
                forward = update.before(backward).of(Forward).first
                related = {"step": update.step.at}
                if forward is not None:
                    related["forward"] = forward.at
                if update.step.boundary is not None:
                    related["boundary"] = update.step.boundary
                unused = _not_as_configured(trace, backward, update)
                yield self.finding(
                    backward.seen_from(update.step),
                    f"DDP all-reduces the gradients on every micro-batch although only their sum is stepped, which costs time and changes nothing{unused}. Run the forward "
                    "and the backward pass of all but the last micro-batch inside model.no_sync().",
                    severity=Severity.INFO if unused else None,
                    related=related,
                )

    def check_syntax(self, module: Module) -> Iterator[Finding]:
        for dropped in never_entered(module, frozenset({"no_sync"})):
            text = module.segment(dropped)
            yield self.finding(
                module.location(dropped),
                f"`{text} and ...` evaluates to what comes after `and`, so only that is entered and DDP all-reduces the gradients of every micro-batch. Write `with {text}, ...`.",
            )

    def fix(self, finding: Finding, module: Module) -> Fix | None:
        places = [finding.related.get(name) for name in ("forward", "step", "boundary")]
        if any(p is None or p.path != module.path for p in places):
            return None
        forward = module.call_at(finding.related["forward"])
        backward = module.call_at(finding.at)
        if forward is None or backward is None:
            return None
        editor = Editor(module)
        last = module.statement(backward)
        block = editor.block_of(last)
        first = next(
            (s for s in block if s.lineno <= forward.lineno <= (s.end_lineno or s.lineno)), None
        )
        boundary = _boundary(module, finding.related["step"].line, block)
        if first is None or boundary is None or block.index(first) > block.index(last):
            return None
        inside = block[block.index(first) : block.index(last) + 1]
        if not _known_before(module, boundary.test, inside, last):
            return None
        moved = reindented(editor, inside, editor.indent(first) + "    ")
        if moved is None:
            return None
        edits, nullcontext = _nullcontext(module)
        test, model = module.segment(boundary.test), module.segment(forward.func)
        header = f"{editor.indent(first)}with {nullcontext}() if {test} else {model}.no_sync():\n"
        wrapped = Edit(
            moved.line, moved.column, moved.end_line, moved.end_column, header + moved.content
        )
        return Fix("Synchronise on the last micro-batch only", (*edits, wrapped))

    wrong = (
        DDP
        + """\
optimizer.zero_grad()
for i, (inputs, targets) in enumerate(loader):
    loss = loss_fn(model(inputs), targets) / 2
    loss.backward()  # FL301
    if (i + 1) % 2 == 0 or i + 1 == len(loader):
        optimizer.step()
        optimizer.zero_grad()
""",
        DDP
        + """\
for inputs, targets in loader:
    optimizer.zero_grad()
    for micro, wanted in zip(inputs.chunk(4), targets.chunk(4)):
        loss = loss_fn(model(micro), wanted) / 4
        loss.backward()  # FL301
    optimizer.step()
""",
    )
    right = (
        DDP
        + """\
import contextlib

optimizer.zero_grad()
for i, (inputs, targets) in enumerate(loader):
    last = (i + 1) % 2 == 0 or i + 1 == len(loader)
    with contextlib.nullcontext() if last else model.no_sync():
        loss = loss_fn(model(inputs), targets) / 2
        loss.backward()
    if last:
        optimizer.step()
        optimizer.zero_grad()
""",
        # nanoGPT: the same switch by hand
        DDP
        + """\
for inputs, targets in loader:
    for micro in range(4):
        model.require_backward_grad_sync = micro == 3
        loss = loss_fn(model(inputs[micro::4]), targets[micro::4]) / 4
        loss.backward()
    optimizer.step()
    optimizer.zero_grad()
""",
        # no accumulation
        DDP
        + """\
for inputs, targets in loader:
    optimizer.zero_grad()
    loss_fn(model(inputs), targets).backward()
    optimizer.step()
""",
        # accumulation without DDP
        DDP
        + """\
net = torch.nn.Linear(8, 2)
opt = torch.optim.SGD(net.parameters(), lr=0.1)
for inputs, targets in loader:
    opt.zero_grad()
    for micro, wanted in zip(inputs.chunk(4), targets.chunk(4)):
        loss = loss_fn(net(micro), wanted) / 4
        loss.backward()
    opt.step()
""",
    )


def _synced_again(update: Update) -> list[Backward]:
    """All-reduces of one loss that another one of the same loss follows in this update."""
    synced = [b for b in update.backwards if b.wrapper == "ddp" and b.sync is True]
    return [
        b
        for b in synced
        if any(
            later in synced and later.loss == b.loss
            for later in update.after(b).until(ZeroGrad).of(Backward)
        )
    ]


def _not_as_configured(trace: Trace, backward: Backward, update: Update) -> str:
    """Why it costs nothing as the program is configured, as the end of a sentence; empty where it does."""
    if update.step.optional is not None:
        return f" (once `{update.step.optional}` is above 1)"
    known = trace.model(backward.model)
    if known is not None and known.one_device:
        return " (once more than the one GPU of CUDA_VISIBLE_DEVICES is used)"
    return ""


def _boundary(module: Module, step_line: int, block: list[ast.stmt]) -> ast.If | None:
    """The `if` of this block that holds the step in its body."""
    for statement in block:
        if isinstance(statement, ast.If) and any(
            s.lineno <= step_line <= (s.end_lineno or s.lineno) for s in statement.body
        ):
            return statement
    return None


def _known_before(module: Module, test: ast.expr, inside: list[ast.stmt], last: ast.stmt) -> bool:
    """The boundary test has the same value before the forward pass: it asks nothing and nothing it names changes."""
    loop = module.enclosing(last, ast.For)
    if loop is None or last not in loop.body or not _asks_nothing(test):
        return False
    late, attributes = set(), False
    for node in (n for s in loop.body for n in ast.walk(s)):
        match node:
            case ast.Name(name, ast.Store()) if node.lineno >= inside[0].lineno:
                late.add(name)
            case ast.Attribute(ctx=ast.Store()):
                attributes = True
    reads_attributes = bool(below(test, ast.Attribute))
    return names_in(test).isdisjoint(late) and not (attributes and reads_attributes)


def _nullcontext(module: Module) -> tuple[tuple[Edit, ...], str]:
    """How this file writes contextlib.nullcontext, and the import that it may need for it."""
    known = module.spelling("contextlib.nullcontext")
    if known is not None:
        return (), known
    first = next(
        (
            s
            for s in module.tree.body
            if isinstance(s, ast.Import | ast.ImportFrom)
            and getattr(s, "module", "") != "__future__"
        ),
        None,
    )
    if first is None:
        return (Editor(module).insert(1, 1, "import contextlib\n"),), "contextlib.nullcontext"
    return (Editor(module).insert_before(first, "import contextlib"),), "contextlib.nullcontext"


def _asks_nothing(test: ast.expr) -> bool:
    """No call in it but `len`."""
    for node in ast.walk(test):
        match node:
            case ast.Call(ast.Name("len")):
                pass
            case ast.Call():
                return False
    return True
