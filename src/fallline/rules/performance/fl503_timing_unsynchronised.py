"""FL503 timing-unsynchronised: CUDA work timed with a host clock and no synchronize."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from fallline.finding import Finding, Severity
from fallline.flow.modules import is_module, looks_like_model
from fallline.rule import Rule
from fallline.syntax import Module

_CLOCKS = frozenset(
    {
        "time.time",
        "time.perf_counter",
        "time.monotonic",
        "time.time_ns",
        "time.perf_counter_ns",
        "timeit.default_timer",
    }
)
_MOVES = re.compile(r"""\.cuda\(|["']cuda(:\d+)?["']|\.to\([^)]*device|device\s*=""")
_USES_CUDA = re.compile(r"""\.cuda\(|["']cuda(:\d+)?["']""")
# Anything that makes the host wait, or may do so inside: then the clock is honest, or we cannot know.
_WAITS = frozenset(
    {
        "synchronize",
        "barrier",
        "item",
        "cpu",
        "numpy",
        "tolist",
        "nonzero",
        "wait",
        "result",
        "elapsed_time",
        "any",
        "all",
        "equal",
        "masked_select",
        "unique",
        "update",
        "log",
        "write",
        "append",
    }
)
_QUEUES = frozenset(
    {
        "backward",
        "step",
        "zero_grad",
        "matmul",
        "mm",
        "bmm",
        "forward",
        "sum",
        "mean",
        "pow",
        "to",
        "cuda",
        "half",
        "float",
        "view",
        "reshape",
        "size",
        "next",
        "scale",
        "unscale_",
        "clip_grad_norm_",
        "relu",
        "detach",
        "clone",
        "format",
        "train",
        "eval",
    }
)
_HARMLESS = frozenset({"range", "len", "enumerate", "zip", "int", "iter", "next", "print"})


class TimingUnsynchronised(Rule):
    code = "FL503"
    name = "timing-unsynchronised"
    severity = Severity.WARNING
    what = "Work on a CUDA device is timed with `time.time()` or `time.perf_counter()`, and nothing waits for the device before the clock is read."
    why = (
        "CUDA calls return as soon as the work is queued. Without a synchronisation the clock measures how fast Python queues kernels, not how long they run; the "
        "time shows up later, at whatever line waits first."
    )
    instead = "Call `torch.cuda.synchronize()` before both readings, or use `torch.cuda.Event(enable_timing=True)` or `torch.utils.benchmark.Timer`."
    references = ("https://docs.pytorch.org/docs/stable/notes/cuda.html#asynchronous-execution",)
    tokens = (b"time", b"clock")

    wrong = (
        """\
import time

import torch
from torch import nn

model = nn.Linear(1024, 1024).cuda()
x = torch.randn(64, 1024, device="cuda")
start = time.time()
for _ in range(100):
    y = model(x)
print((time.time() - start) / 100)  # FL503
""",
        """\
from time import perf_counter

import torch


def bench(n):
    a = torch.randn(n, n, device="cuda")
    begin = perf_counter()
    b = torch.matmul(a, a)
    end = perf_counter()  # FL503
    return end - begin, b
""",
    )
    right = (
        """\
import time

import torch
from torch import nn

model = nn.Linear(1024, 1024).cuda()
x = torch.randn(64, 1024, device="cuda")
torch.cuda.synchronize()
start = time.time()
for _ in range(100):
    y = model(x)
torch.cuda.synchronize()
print((time.time() - start) / 100)
""",
        """\
import time

import torch


def train(model, loader, optimizer):
    start = time.time()
    total = 0.0
    for x in loader:
        optimizer.zero_grad()
        loss = model(x.cuda()).mean()
        loss.backward()
        optimizer.step()
        total += loss.item()
    print(time.time() - start, total)
""",
        """\
import time

import torch
from torch import nn

model = nn.Linear(8, 8)
x = torch.randn(2, 8)
start = time.time()
y = model(x)
print(time.time() - start)
""",
        """\
import time

import torch


def epoch(train, evaluate, model):
    model.to("cuda")
    start = time.time()
    train(model)
    evaluate(model)
    print(time.time() - start)
""",
    )

    def check_syntax(self, module: Module) -> Iterator[Finding]:
        readings = sorted(module.calls(*_CLOCKS), key=lambda c: (c.lineno, c.col_offset))
        if len(readings) < 2 or _USES_CUDA.search(module.source.text) is None:
            return
        for start in readings:
            block, first = _block(module, module.statement(start))
            if (
                not isinstance(first, ast.Assign)
                or first.value is not start
                or not isinstance(first.targets[0], ast.Name)
            ):
                continue
            end = _end_of_timing(module, block, first, readings)
            if end is None:
                continue
            closing = _ancestor_in(module, end, block)
            between = block[block.index(first) + 1 : block.index(closing)]
            if between and _only_queues(module, between):
                yield self.finding(
                    module.location(end),
                    "The clock is read while the device still works: this times the queueing, not the work. Call torch.cuda.synchronize() first.",
                    severity=None if _on_device(module, block, between) else Severity.INFO,
                )


def _block(module: Module, statement: ast.stmt) -> tuple[list[ast.stmt], ast.stmt]:
    up = module.parent(statement)
    for name in ("body", "orelse", "finalbody"):
        block = getattr(up, name, None)
        if isinstance(block, list) and statement in block:
            return block, statement
    return [statement], statement


def _end_of_timing(
    module: Module, block: list[ast.stmt], first: ast.Assign, readings: list[ast.Call]
) -> ast.Call | None:
    """The next reading of the clock in the same block that is compared with this one."""
    target = first.targets[0]
    assert isinstance(target, ast.Name)
    following = [s for s in block if s.lineno > first.lineno]
    for reading in readings:
        if reading.lineno <= first.lineno:
            continue
        closing = next(
            (s for s in following if s.lineno <= reading.lineno <= (s.end_lineno or s.lineno)), None
        )
        if closing is None or isinstance(
            closing, ast.For | ast.While | ast.With | ast.If | ast.FunctionDef | ast.Try
        ):
            return None
        used = {n.id for n in ast.walk(closing) if isinstance(n, ast.Name)}
        if target.id in used:
            return reading
        if isinstance(closing, ast.Assign) and isinstance(closing.targets[0], ast.Name):
            end = closing.targets[0].id
            later = [s for s in following if s.lineno > closing.lineno]
            if any(
                isinstance(n, ast.BinOp)
                and isinstance(n.op, ast.Sub)
                and {m.id for m in ast.walk(n) if isinstance(m, ast.Name)} >= {end, target.id}
                for s in later
                for n in ast.walk(s)
            ):
                return reading
        return None
    return None


def _ancestor_in(module: Module, node: ast.AST, block: list[ast.stmt]) -> ast.stmt:
    here = module.statement(node)
    while here not in block:
        up = module.parent(here)
        assert up is not None
        here = module.statement(up)
    return here


def _only_queues(module: Module, statements: list[ast.stmt]) -> bool:
    """The timed code runs on the device, and every call in it is known to return before the work is done."""
    works = False
    for call in (n for s in statements for n in ast.walk(s) if isinstance(n, ast.Call)):
        name = module.resolve(call.func)
        if isinstance(call.func, ast.Attribute) and call.func.attr in _WAITS:
            return False
        if _copies_to_host(module, call):
            return False
        if is_module(module, call.func) or (_called_like_model(module, call)):
            works = True
        elif name is not None and name.startswith("torch."):
            works = works or (
                name.split(".")[1] in {"matmul", "mm", "bmm", "einsum", "nn", "conv2d", "addmm"}
                and not name.rpartition(".")[2][:1].isupper()
            )
        elif isinstance(call.func, ast.Attribute) and call.func.attr in _QUEUES:
            works = works or call.func.attr in {"backward", "matmul", "mm", "bmm"}
        elif not (isinstance(call.func, ast.Name) and call.func.id in _HARMLESS):
            return False
        if isinstance(call.func, ast.Name) and call.func.id == "print" and call.args:
            return False
    return works


def _on_device(module: Module, block: list[ast.stmt], statements: list[ast.stmt]) -> bool:
    """Whether something that is computed with was seen to be put on the device: here, or where it was made."""
    seen: set[str] = set()
    queue: list[ast.AST] = list(statements)
    while queue:
        here = queue.pop()
        if _MOVES.search(module.segment(here)):
            return True
        for name in (n for n in ast.walk(here) if isinstance(n, ast.Name)):
            if isinstance(name.ctx, ast.Store) or name.id in seen or name.id in module.imports:
                continue
            seen.add(name.id)
            bound = module.bindings(name.id, module.scope(name)) or module.bindings(name.id, None)
            made = [module.statement(b) for b in bound if isinstance(b, ast.Name)]
            # made anew just before, in the same lines: what the name stood for earlier is gone
            last = [m for m in made if m in block and m.lineno < statements[0].lineno][-1:]
            if last and isinstance(last[0], ast.Assign) and name.id not in _read(last[0].value):
                made = last
            queue += [m.iter if isinstance(m, ast.For) else m for m in made]
    return False


def _read(node: ast.AST) -> set[str]:
    return {n.id for n in ast.walk(node) if isinstance(n, ast.Name)}


def _called_like_model(module: Module, call: ast.Call) -> bool:
    """`model(x)`, but not `setup_model(config)`: a name of a model, called, that is no function of this file or another."""
    name = call.func.id if isinstance(call.func, ast.Name) else None
    return (
        looks_like_model(call.func) and name not in module.functions and name not in module.imports
    )


def _copies_to_host(module: Module, call: ast.Call) -> bool:
    """`x.to("cpu")`, `x.to(cpu_device)`: waits for the result."""
    if not isinstance(call.func, ast.Attribute) or call.func.attr != "to":
        return False
    return any("cpu" in module.segment(a).lower() for a in call.args)
