"""FL404 empty-cache-in-loop: the allocator's cache is thrown away on every iteration."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from fallline.finding import Finding, Fix, Severity
from fallline.flow.values import values_of
from fallline.rule import Rule
from fallline.syntax import Editor, Module

_NAMES = (
    "torch.cuda.empty_cache",
    "torch.mps.empty_cache",
    "torch.xpu.empty_cache",
    "torch.npu.empty_cache",
)
_GIVES_BATCHES = re.compile(r"loader|dataset|batch|dataiter|data_iter", re.IGNORECASE)
_OUT_OF_MEMORY = re.compile(r"out of memory|OutOfMemoryError", re.IGNORECASE)
_SAME_EVERY_TIME = re.compile(r"cuda|gpu|is_available|empty_cache|device", re.IGNORECASE)


class EmptyCacheInLoop(Rule):
    code = "FL404"
    name = "empty-cache-in-loop"
    severity = Severity.WARNING
    what = "`torch.cuda.empty_cache()` runs on every iteration of a batch loop."
    why = (
        "The cache is what makes allocation cheap: memory in it is free for the next tensor already, and emptying it frees nothing that torch itself could not use. "
        "Every call waits for the device and gives the blocks back, and the next iteration asks the driver for them again."
    )
    instead = "Remove it. Against fragmentation set PYTORCH_ALLOC_CONF=expandable_segments:True; against growth, find the tensor that is kept (FL401)."
    fix_safety = "Removes the call; no value changes."
    references = ("https://docs.pytorch.org/docs/stable/notes/cuda.html#memory-management",)
    tokens = (b"empty_cache",)

    wrong = (
        """\
import torch


def train(model, loader, optimizer, loss_fn):
    for x, y in loader:
        optimizer.zero_grad()
        loss = loss_fn(model(x), y)
        loss.backward()
        optimizer.step()
        torch.cuda.empty_cache()  # FL404
""",
        """\
import gc

import torch


def train(model, batches, optimizer):
    step = 0
    while step < 1000:
        optimizer.zero_grad()
        loss = model(next(batches)).mean()
        loss.backward()
        optimizer.step()
        step += 1
        if torch.cuda.is_available():
            torch.cuda.empty_cache()  # FL404
""",
    )
    right = (
        """\
import torch


def train(model, loader, optimizer, epochs):
    for epoch in range(epochs):
        for x in loader:
            optimizer.zero_grad()
            model(x).mean().backward()
            optimizer.step()
        torch.cuda.empty_cache()
""",
        """\
import torch


def train(model, loader, optimizer):
    for i, x in enumerate(loader):
        try:
            optimizer.zero_grad()
            model(x).mean().backward()
            optimizer.step()
        except torch.cuda.OutOfMemoryError:
            torch.cuda.empty_cache()
            continue
        if i % 1000 == 0:
            torch.cuda.empty_cache()
""",
        """\
import torch


def compare(names, run):
    for name in names:
        print(name, run(name))
        torch.cuda.empty_cache()


def fold(folds, loaders, model):
    for fold in range(folds):
        for x in loaders[fold]:
            model(x).mean().backward()
        torch.cuda.empty_cache()
""",
    )

    def check_syntax(self, module: Module) -> Iterator[Finding]:
        for call in module.calls(*_NAMES):
            loop = _loop_of(module, call)
            if loop is not None and _OUT_OF_MEMORY.search(module.segment(loop)):
                continue  # a search for the largest batch that fits
            trains = loop is not None and _trains(module, loop)
            if loop is not None and (trains or _over_batches(module, loop)):
                yield self.finding(
                    module.location(call),
                    "The memory cache is emptied on every iteration, so each one waits for the device and allocates its memory again. Remove the call.",
                    # between pieces of a generation or an evaluation it may be meant
                    severity=None if trains and not _is_epoch(module, loop) else Severity.INFO,
                )

    def fix(self, finding: Finding, module: Module) -> Fix | None:
        call = module.call_at(finding.at)
        statement = module.statement(call) if call is not None else None
        if not isinstance(statement, ast.Expr) or not Editor(module).alone(statement):
            return None
        return Fix("Keep the cache", (Editor(module).delete(statement),))


def _loop_of(module: Module, call: ast.Call, depth: int = 2) -> ast.For | ast.While | None:
    """The loop whose every iteration makes this call, here or through a helper: no test that changes with the iteration, no exception handler."""
    child: ast.AST = call
    for up in module.parents(call):
        match up:
            case ast.For() | ast.While():
                return up if child in up.body else None
            case ast.If(test):
                text = module.segment(test)
                if _SAME_EVERY_TIME.search(text) is None or "%" in text:
                    return None
            case ast.FunctionDef() if depth:
                sites = values_of(module).calls_of(up)
                loops = (_loop_of(module, site, depth - 1) for site in sites)
                return next((loop for loop in loops if loop is not None), None)
            case ast.ExceptHandler() | ast.FunctionDef() | ast.AsyncFunctionDef() | ast.Lambda():
                return None
        child = up
    return None


def _trains(module: Module, loop: ast.For | ast.While) -> bool:
    """Each turn of the loop itself is one batch that is trained on: not one of a few settings that are compared."""
    match loop:
        case ast.For(iter=ast.List() | ast.Tuple()):
            return False
    # a closure that is made here runs in some other loop
    inside = (module.enclosing(c, ast.For, ast.While, ast.FunctionDef) for c in _backwards(loop))
    return any(up is loop for up in inside)


def _is_epoch(module: Module, loop: ast.For | ast.While) -> bool:
    """`for epoch in range(epochs)` that trains on all the data at once: one call beside an epoch's work costs nothing."""
    return isinstance(loop, ast.For) and "epoch" in module.segment(loop.target).lower()


def _over_batches(module: Module, loop: ast.For | ast.While) -> bool:
    """The data of the loop come from what is called like a loader, and nothing in it is a loop or trains."""
    inner = [n for n in ast.walk(loop) if n is not loop and isinstance(n, ast.For | ast.While)]
    if inner or any(_backwards(loop)):
        return False
    return (
        isinstance(loop, ast.For) and _GIVES_BATCHES.search(module.segment(loop.iter)) is not None
    )


def _backwards(loop: ast.AST) -> Iterator[ast.Call]:
    for node in ast.walk(loop):
        match node:
            case ast.Call(ast.Attribute(attr="backward")):
                yield node
