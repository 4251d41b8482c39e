"""FL705 save-not-atomic: the only checkpoint is overwritten in place."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from fallline.finding import Finding, Severity
from fallline.flow.values import values_of
from fallline.rule import Rule
from fallline.syntax import Module
from fallline.syntax.nodes import below

_MOVES = (
    "os.replace",
    "os.rename",
    "shutil.move",
    "shutil.copy",
    "shutil.copyfile",
    "shutil.copy2",
    "os.link",
)
_JOINS = frozenset({"os.path.join", "pathlib.Path", "str", "os.fspath"})


class SaveNotAtomic(Rule):
    code = "FL705"
    name = "save-not-atomic"
    severity = Severity.INFO
    what = "A training loop overwrites its one checkpoint in place."
    why = (
        "`torch.save` first empties the file and then writes it. A run that is killed, preempted or out of disk in between leaves a truncated file, and the old "
        "checkpoint is already gone."
    )
    instead = "Write to a temporary name in the same folder and `os.replace` it, or keep the last few files, or use `fallline.save_checkpoint`."
    references = ("https://docs.python.org/3/library/os.html#os.replace",)
    tokens = (b"torch.save", b"save(")

    wrong = (
        """\
import torch


def train(model, loader, optimizer, epochs):
    for epoch in range(epochs):
        for x in loader:
            optimizer.zero_grad()
            model(x).mean().backward()
            optimizer.step()
        torch.save(model.state_dict(), "last.pt")  # FL705
""",
        """\
import os

import torch


def train(args, model, loader, optimizer):
    path = os.path.join(args.out, "checkpoint.pth")
    for step, x in enumerate(loader):
        optimizer.zero_grad()
        model(x).mean().backward()
        optimizer.step()
        if step % 1000 == 0:
            torch.save(model.state_dict(), path)  # FL705
""",
    )
    right = (
        """\
import os

import torch


def train(model, loader, optimizer, epochs):
    for epoch in range(epochs):
        for x in loader:
            optimizer.zero_grad()
            model(x).mean().backward()
            optimizer.step()
        torch.save(model.state_dict(), "last.pt.part")
        os.replace("last.pt.part", "last.pt")
""",
        """\
import torch


def train(model, loader, optimizer, epochs):
    for epoch in range(epochs):
        for x in loader:
            optimizer.zero_grad()
            model(x).mean().backward()
            optimizer.step()
        torch.save(model.state_dict(), f"epoch_{epoch}.pt")
        torch.save(model.state_dict(), "last.pt")
    torch.save(model.state_dict(), "final.pt")
""",
        """\
import io

import torch


def send(models, out):
    for model in models:
        buffer = io.BytesIO()
        torch.save(model.state_dict(), buffer)
        out.write(buffer.getvalue())
""",
    )

    def check_syntax(self, module: Module) -> Iterator[Finding]:
        calls = list(module.calls("torch.save"))
        if (
            not calls
            or any(True for _ in module.calls(*_MOVES))
            or any(True for _ in module.method_calls("rename", "replace"))
        ):
            return
        paths = [(call, Module.argument(call, 1, "f")) for call in calls]
        # another file with a number in its name is there when this one breaks
        if any(
            path is None or _varies(module, call, path)
            for call, path in paths
            if module.in_loop(call)
        ):
            return
        for call, path in paths:
            if (
                path is not None
                and _in_training_loop(module, call)
                and _is_path(module, path)
                and not _numbered(module, path)
            ):
                yield self.finding(
                    module.location(call),
                    "The only checkpoint is overwritten in place, so a crash while writing loses both the old and the new one. Write to a temporary name and `os.replace` it.",
                )


def _loops(module: Module, node: ast.AST) -> Iterator[ast.For | ast.While]:
    for up in module.parents(node):
        if isinstance(up, ast.For | ast.While):
            yield up
        elif isinstance(up, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            return


def _in_training_loop(module: Module, call: ast.Call) -> bool:
    """In a loop that trains; or in a helper that such a loop calls, or a method that makes one update."""
    steps = {id(c) for c in module.method_calls("backward", "step")}

    def trains(node: ast.AST) -> bool:
        return any(id(n) in steps for n in ast.walk(node))

    if any(trains(loop) for loop in _loops(module, call)):
        return True
    helper = module.function(call)
    if not isinstance(helper, ast.FunctionDef) or trains(helper):
        return False
    for use in values_of(module).calls_of(helper):
        caller = module.function(use)
        inside = (
            module.class_(use) is not None
            and isinstance(caller, ast.FunctionDef)
            and trains(caller)
        )
        if inside or any(trains(loop) for loop in _loops(module, use)):
            return True
    return False


def _numbered(module: Module, path: ast.expr) -> bool:
    """`f"epoch_{epoch}.pt"` of a helper that is told the epoch."""
    parts = {n.id for node in (path, module.value(path)) for n in below(node, ast.Name)}
    function = module.function(path)
    given = {a.arg for a in below(function.args, ast.arg)} if function is not None else set()
    return any(_NUMBER.search(name) for name in parts & given)


_NUMBER = re.compile(r"(?i)epoch|step|iter|^(i|n|k|it)$|tag|name|suffix|num|idx|id$|best|version")


def _varies(module: Module, call: ast.Call, path: ast.expr) -> bool:
    """The path holds something that is bound inside the loop, or that cannot be followed."""
    bound: set[str] = set()
    for node in (n for loop in _loops(module, call) for n in ast.walk(loop)):
        match node:
            case ast.Name(name, ast.Store()):
                bound.add(name)
    for part in [*ast.walk(path), *ast.walk(module.value(path))]:
        match part:
            case ast.Name(name) if name in bound:
                return True
            case ast.Call() if not _is_join(module, part):
                return True
    return False


def _is_join(module: Module, call: ast.Call) -> bool:
    match call.func:
        case ast.Name(name) if name in _JOINS:
            return True
        case ast.Attribute(attr="joinpath" | "format"):
            return True
    return module.resolve(call.func) in _JOINS


def _is_path(module: Module, path: ast.expr) -> bool:
    """A text, or a join of texts: not a buffer."""
    match module.value(path):
        case ast.Constant(str()) | ast.BinOp() | ast.JoinedStr():
            return True
        case ast.Call(func):
            return module.resolve(func) in _JOINS
        case ast.Attribute(ast.Name("self"), name):
            return _NAMES_A_FILE.search(name) is not None
    return False


_NAMES_A_FILE = re.compile(r"(^|_)(path|ckpt|checkpoint|file(name)?)$")
