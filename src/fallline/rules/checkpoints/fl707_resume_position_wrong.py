"""FL707: a resumed run starts at the wrong sample."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from fallline.finding import Finding, Severity
from fallline.flow.calls import last_name
from fallline.flow.epochs import repeated_epochs
from fallline.rule import Rule
from fallline.syntax import Module
from fallline.syntax.nodes import below, is_name

_RESUMED = re.compile(r"resum|state|start|skip|offset|restor", re.IGNORECASE)
_WINDOW_ENDS = re.compile(r"accumul|sync_gradients")


class ResumePositionWrong(Rule):
    code = "FL707"
    name = "resume-position-wrong"
    severity = Severity.WARNING
    what = "A resumed run skips the wrong batches: the skipping loader is kept for later epochs, or updates are counted as micro-batches."
    why = """\
Part of the data is trained on twice and part of it never, and nothing fails.

`loader = accelerator.skip_first_batches(loader, n)` inside the epoch loop replaces the loader, so every later epoch skips the same batches. And a
checkpoint named after the number of updates has seen `gradient_accumulation_steps` times as many batches: dividing that number by `len(loader)`
resumes in the wrong epoch."""
    instead = """\
Keep the whole loader, and count in one unit.

```python
active = accelerator.skip_first_batches(loader, resume_step) if epoch == first_epoch else loader
resume_step = int(name.replace("step_", "")) * gradient_accumulation_steps
```"""
    references = ("https://huggingface.co/docs/accelerate/usage_guides/checkpoint",)
    tokens = (b"skip_first_batches", b"step_", b"while True", b"while 1", b"epoch", b"islice")
    wrong = (
        """\
import torch
from accelerate import Accelerator

accelerator = Accelerator()
model = torch.nn.Linear(4, 1)
loader = torch.utils.data.DataLoader(torch.randn(64, 4), batch_size=8)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
first_epoch, resume_step = 1, 3
for epoch in range(first_epoch, 5):
    if epoch == first_epoch:
        loader = accelerator.skip_first_batches(loader, resume_step)  # FL707
    for batch in loader:
        loss = model(batch).square().mean()
        accelerator.backward(loss)
        optimizer.step()
        optimizer.zero_grad()
""",
        """\
import os


def train(path, train_dataloader, accelerator, update):
    resume_step = int(os.path.basename(path).replace("step_", ""))
    starting_epoch = resume_step // len(train_dataloader)  # FL707
    completed_steps = 0
    for epoch in range(starting_epoch, 3):
        for batch in train_dataloader:
            update(batch)
            if accelerator.sync_gradients:
                completed_steps += 1
                accelerator.save_state(f"step_{completed_steps}")
""",
    )
    right = (
        # here the folder is named after the number of batches
        """\
import os


def train(path, train_dataloader, accelerator, update):
    resume_step = int(os.path.basename(path).replace("step_", ""))
    starting_epoch = resume_step // len(train_dataloader)
    overall_step = 0
    for epoch in range(starting_epoch, 3):
        for batch in train_dataloader:
            update(batch)
            overall_step += 1
            accelerator.save_state(f"step_{overall_step}")
""",
        """\
import torch
from accelerate import Accelerator

accelerator = Accelerator()
model = torch.nn.Linear(4, 1)
loader = torch.utils.data.DataLoader(torch.randn(64, 4), batch_size=8)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
first_epoch, resume_step = 1, 3
for epoch in range(first_epoch, 5):
    active = accelerator.skip_first_batches(loader, resume_step) if epoch == first_epoch else loader
    for batch in active:
        loss = model(batch).square().mean()
        accelerator.backward(loss)
        optimizer.step()
        optimizer.zero_grad()
""",
        """\
import os


def train(path, train_dataloader, accelerator, update, gradient_accumulation_steps):
    resume_step = int(os.path.basename(path).replace("step_", "")) * gradient_accumulation_steps
    starting_epoch = resume_step // len(train_dataloader)
    completed_steps = 0
    for epoch in range(starting_epoch, 3):
        for step, batch in enumerate(train_dataloader):
            if epoch == starting_epoch and step < resume_step % len(train_dataloader):
                continue
            update(batch)
            if accelerator.sync_gradients:
                completed_steps += 1
                accelerator.save_state(f"step_{completed_steps}")
""",
    )

    def check_syntax(self, module: Module) -> Iterator[Finding]:
        for node in _replaced_loaders(module):
            yield self.finding(
                module.location(node),
                "The loader that skips batches replaces the whole one, so every later epoch skips the same batches. "
                "Give it a different name, and use it in the resumed epoch only",
            )
        for loop, name in _never_begun_again(module):
            yield self.finding(
                module.location(loop),
                f"`{name}` starts where the run was resumed and is not set back to the beginning, so the second pass over the data has nothing left to read. "
                "Set it back to 0 inside the endless loop",
            )
        for place in repeated_epochs(module):
            yield self.finding(
                module.location(place),
                "The checkpoint holds the epoch that was just finished and the run resumes with that same epoch, so it is trained twice. "
                "Start with the saved epoch + 1",
                severity=Severity.INFO,
            )
        for place, instead in [*_updates_as_batches(module), *_compared(module), *_skipped(module)]:
            yield self.finding(
                module.location(place),
                f"One side of this counts updates and the other micro-batches, so the run resumes at the wrong batch. {instead}",
            )


def _skipped(module: Module) -> Iterator[tuple[ast.expr, str]]:
    """`islice(stream, updates, None)`, of a count that goes up once for several micro-batches."""
    for call in module.calls("itertools.islice"):
        match call.args:
            case [_, ast.Name(name), *_]:
                pass
            case _:
                continue
        for change in module.all(ast.AugAssign):
            if not is_name(change.target, name) or module.scope(change) is not module.scope(call):
                continue
            loop = module.enclosing(change, ast.For, ast.While)
            body: list[ast.stmt] = loop.body if isinstance(loop, ast.For | ast.While) else []
            inner = [n for n in body if isinstance(n, ast.For)]
            draws = (c for n in inner for c in below(n, ast.Call))
            if any(last_name(c) == "next" for c in draws):
                yield call, f"Skip `{name}` times the number of micro-batches of an update"


def _replaced_loaders(module: Module) -> Iterator[ast.Assign]:
    """`loader = skip_first_batches(loader, n)` in a loop that does not build the loader again."""
    for assign in module.all(ast.Assign):
        match assign:
            case ast.Assign([ast.Name(name)], ast.Call(_, [ast.Name(given), *_]) as call):
                if name != given or last_name(call) != "skip_first_batches":
                    continue
                loop = module.enclosing(assign, ast.For, ast.While, ast.FunctionDef)
                if loop is None or isinstance(loop, ast.FunctionDef):
                    continue
                bound = [b for b in module.bindings(name, module.scope(assign)) if _inside(b, loop)]
                if len(bound) == 1:
                    yield assign


def _never_begun_again(module: Module) -> Iterator[tuple[ast.While, str]]:
    """`i = state["i"]`, then `while True:` around `while i < n: ... i += 1`: the inner loop runs once."""
    for outer in module.all(ast.While):
        if module.constant(outer.test) not in (True, 1):
            continue
        for inner in outer.body:
            match inner:
                case ast.While(ast.Compare(ast.Name(name), [ast.Lt() | ast.LtE()])):
                    bound = module.bindings(name, module.scope(inner))
                    here = [b for b in bound if _inside(b, outer)]
                    first = [b for b in bound if b not in here]
                    if here and all(_counts_up(module, b) for b in here) and len(first) == 1:
                        if _RESUMED.search(module.segment(module.statement(first[0]))):
                            yield inner, name


def _counts_up(module: Module, binding: ast.AST) -> bool:
    return isinstance(module.parent(binding), ast.AugAssign)


def _inside(node: ast.AST, loop: ast.stmt) -> bool:
    return loop.lineno <= getattr(node, "lineno", 0) <= (loop.end_lineno or loop.lineno)


def _updates_as_batches(module: Module) -> Iterator[tuple[ast.expr, str]]:
    """`int(name.replace("step_", "")) // len(loader)` of a folder that is named after the number of updates."""
    if not any(_counts_updates(module, name) for name in _in_folder_names(module)):
        return
    for division in module.all(ast.BinOp):
        match division:
            case ast.BinOp(ast.Name() as count, ast.FloorDiv(), ast.Call(ast.Name("len"), [_])):
                values = _assigned_before(module, count)
                if values and _is_step_of_name(module, values[-1]):
                    yield division, "Multiply the step by `gradient_accumulation_steps`"


def _compared(module: Module) -> Iterator[tuple[ast.expr, str]]:
    """`completed_steps < resume_step`, where one counts updates and the other was multiplied into micro-batches."""
    for test in module.all(ast.Compare):
        match test:
            case ast.Compare(ast.Name(count), [ast.Lt() | ast.LtE()], [ast.Name() as limit]):
                batches = any(
                    _times_accumulation(module, v) for v in _assigned_before(module, limit)
                )
                if batches and _counts_updates(module, count):
                    yield test, "Compare the number of batches"


def _in_folder_names(module: Module) -> set[str]:
    """`completed_steps` of `f"step_{completed_steps}"`."""
    found: set[str] = set()
    for text in module.all(ast.JoinedStr):
        match text.values:
            case [ast.Constant("step_"), ast.FormattedValue(ast.Name(name)), *_]:
                found.add(name)
    return found


def _counts_updates(module: Module, name: str) -> bool:
    """Every `name += 1` is under a test for the end of an accumulation window."""
    tests = []
    for added in module.all(ast.AugAssign):
        if is_name(added.target, name):
            test = module.enclosing(added, ast.If)
            tests.append(module.segment(test.test) if test is not None else "")
    return bool(tests) and all(_WINDOW_ENDS.search(text) for text in tests)


def _assigned_before(module: Module, name: ast.Name) -> list[ast.expr]:
    bound = module.bindings(name.id, module.scope(name))
    ups = [up for b in bound if isinstance(up := module.parent(b), ast.Assign)]
    return [up.value for up in ups if up.lineno < name.lineno]


def _times_accumulation(module: Module, value: ast.expr) -> bool:
    match value:
        case ast.BinOp(left, ast.Mult(), right):
            return any("accumul" in module.segment(side) for side in (left, right))
    return False


def _is_step_of_name(module: Module, value: ast.expr) -> bool:
    match value:
        case ast.Call(ast.Name("int"), [ast.Call(ast.Attribute(attr="replace"), [old, *_])]):
            return bool(module.constant(old) == "step_")
    return False
