"""FL503 timing-unsynchronised: CUDA work timed with a host clock and no synchronize."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from fallline.finding import Finding, Severity
from fallline.flow.calls import names_in
from fallline.flow.modules import is_module, looks_like_model
from fallline.rule import Rule
from fallline.syntax import Editor, Module
from fallline.syntax.nodes import below, is_name

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
_COMMENT = re.compile(r"#.*")
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
_COMPUTES = frozenset({"matmul", "mm", "bmm", "einsum", "nn", "conv2d", "addmm"})
_HARMLESS = frozenset({"range", "len", "enumerate", "zip", "int", "iter", "next", "print"})


_MEASURES = re.compile(r"(?i)bench|profil|latency|throughput|speed|fps|timing")


class TimingUnsynchronised(Rule):
    code = "FL503"
    name = "timing-unsynchronised"
    severity = Severity.WARNING
    what = "Work on a CUDA device is timed with `time.time()` or `time.perf_counter()`, and nothing waits for the device before the clock is read."
    why = (
        "CUDA calls return as soon as the work is queued. Without a synchronisation the clock measures how fast Python queues kernels, not how long they run; the "
        "time shows up later, at the first line that waits."
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
        if len(readings) < 2 or _USES_CUDA.search(_COMMENT.sub("", module.source.text)) is None:
            return
        if ".elapsed_time(" in module.source.text:
            return  # the device is timed by its own clock: this one is for the host
        for start in readings:
            first = module.statement(start)
            match first:
                case ast.Assign([ast.Name(clock), *_], value) if value is start:
                    block = Editor(module).block_of(first)
                    end = _end_of_timing(block, first, clock, readings)
                    if end is not None and (timed := _timed(module, block, first, end)):
                        yield self.finding(
                            module.location(end),
                            "The clock is read while the device is still working, so it measures how fast kernels are queued, not how long they run. "
                            "Call torch.cuda.synchronize() first.",
                            severity=None
                            if _on_device(module, block, timed)
                            and _is_the_point(module, end, timed)
                            and not _loaded_whole(module, timed)
                            else Severity.INFO,
                        )


def _is_the_point(module: Module, end: ast.Call, timed: list[ast.stmt]) -> bool:
    """Somebody wants this number: the file or the function is called for it, or the same thing is done again and again. Everything else only logs it."""
    function = module.function(end)
    if _MEASURES.search(f"{module.path} {getattr(function, 'name', '')}"):
        return True
    again = any(isinstance(s, ast.For) and is_name(s.target, "_") for s in timed)
    return again and ".backward(" not in module.source.text


def _loaded_whole(module: Module, timed: list[ast.stmt]) -> bool:
    """`torch.jit.load(path)`: whether such a model waits for the device inside is not in view."""
    called = (c.func for s in timed for c in below(s, ast.Call))
    return any("jit.load(" in module.segment(module.value(func)) for func in called)


def _timed(module: Module, block: list[ast.stmt], first: ast.stmt, end: ast.Call) -> list[ast.stmt]:
    """The statements between two readings of the clock, where they only queue work for the device."""
    closing = module.statement(end)
    while closing not in block:
        up = module.parent(closing)
        assert up is not None
        closing = module.statement(up)
    between = block[block.index(first) + 1 : block.index(closing)]
    return between if _only_queues(module, between) else []


def _end_of_timing(
    block: list[ast.stmt], first: ast.stmt, clock: str, readings: list[ast.Call]
) -> ast.Call | None:
    """The next reading of the clock in the same block, when it is compared with this one."""
    following = [s for s in block if s.lineno > first.lineno]
    reading = next((r for r in readings if r.lineno > first.lineno), None)
    if reading is None:
        return None
    line = reading.lineno
    closing = next((s for s in following if s.lineno <= line <= (s.end_lineno or s.lineno)), None)
    match closing:
        case None | ast.For() | ast.While() | ast.With() | ast.If() | ast.FunctionDef() | ast.Try():
            return None
        case _ if clock in names_in(closing):
            return reading
        case ast.Assign([ast.Name(end), *_]):
            later = [s for s in following if s.lineno > closing.lineno]
            return reading if any(_subtracts(s, {end, clock}) for s in later) else None
    return None


def _only_queues(module: Module, statements: list[ast.stmt]) -> bool:
    """The timed code runs on the device, and every call in it is known to return before the work is done."""
    works = False
    for call in (n for s in statements for n in below(s, ast.Call)):
        known = _works(module, call)
        if known is None:
            return False
        works = works or known
    return works


def _on_device(module: Module, block: list[ast.stmt], statements: list[ast.stmt]) -> bool:
    """Whether something that is computed with was seen to be put on the device: here, or where it was made."""
    seen: set[str] = set()
    queue: list[ast.AST] = list(statements)
    while queue:
        here = queue.pop()
        if _MOVES.search(module.segment(here)):
            return True
        for name in below(here, ast.Name):
            if isinstance(name.ctx, ast.Store) or name.id in seen or name.id in module.imports:
                continue
            seen.add(name.id)
            queue += _made(module, name, block, statements[0].lineno)
    return False


def _called_like_model(module: Module, call: ast.Call) -> bool:
    """`model(x)`, but not `setup_model(config)`: a name of a model, called, that is not a function of this file or another."""
    match call.func:
        case ast.Name(name) if name in module.functions or name in module.imports:
            return False
    return looks_like_model(call.func)


def _subtracts(statement: ast.stmt, names: set[str]) -> bool:
    """The difference of these is computed here."""
    for node in ast.walk(statement):
        match node:
            case ast.BinOp(op=ast.Sub()) if names_in(node) >= names:
                return True
    return False


def _works(module: Module, call: ast.Call) -> bool | None:
    """Whether a call gives the device work and returns before it is done; None: it waits, or nobody knows."""
    if _waits(module, call):
        return None
    if is_module(module, call.func) or _called_like_model(module, call):
        return True
    name = module.resolve(call.func) or ""
    if name.startswith("torch."):
        return name.split(".")[1] in _COMPUTES and not name.rpartition(".")[2][:1].isupper()
    match call.func:
        case ast.Attribute(attr=method) if method in _QUEUES:
            return method in {"backward", "matmul", "mm", "bmm"}
        case ast.Name(function) if function in _HARMLESS:
            return False
        case ast.Name(function) if function in module.functions:
            return _queues_inside(module, module.functions[function])
    return None


def _queues_inside(module: Module, function: ast.AST) -> bool | None:
    """A function of this file that calls a model and fetches nothing from the device."""
    calls = below(function, ast.Call)
    runs = any(is_module(module, c.func) or _called_like_model(module, c) for c in calls)
    return True if runs and not any(_waits(module, c) for c in calls) else None


def _waits(module: Module, call: ast.Call) -> bool:
    """`x.item()`, `x.to("cpu")`, `print(x)`."""
    match call.func:
        case ast.Attribute(attr="to"):
            return any("cpu" in module.segment(a).lower() for a in call.args)
        case ast.Attribute(attr=method):
            return method in _WAITS
        case ast.Name("print"):
            return bool(call.args)
    return False


def _made(module: Module, name: ast.Name, block: list[ast.stmt], before: int) -> list[ast.AST]:
    """Where what a name stands for was made."""
    bound = module.bindings(name.id, module.scope(name)) or module.bindings(name.id, None)
    made = [module.statement(b) for b in bound if isinstance(b, ast.Name)]
    match [m for m in made if m in block and m.lineno < before][-1:]:
        case [ast.Assign(value=value) as last] if name.id not in names_in(value):
            made = [last]  # made again just before: what the name stood for earlier is gone
    return [m.iter if isinstance(m, ast.For) else m for m in made]
