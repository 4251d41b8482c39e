"""FL210: torch.cuda.amp and torch.cpu.amp are deprecated in favour of torch.amp."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from fallline.finding import Edit, Finding, Fix, Severity
from fallline.rule import Rule
from fallline.syntax import Editor, Module

_DEVICES = ("cuda", "cpu")
_NAMES = ("autocast", "GradScaler", "custom_fwd", "custom_bwd")
# torch.cuda.amp.autocast takes these by position; torch.amp.autocast has another order
_AUTOCAST_ARGUMENTS = ("enabled", "dtype", "cache_enabled")


class DeprecatedAmp(Rule):
    code = "FL210"
    name = "deprecated-amp"
    severity = Severity.INFO
    what = """\
`torch.cuda.amp` and `torch.cpu.amp` are used; `torch.amp` takes the device as an argument.

It is reported where the old name is written: at the import, or at each dotted use."""
    why = """\
The old names still work, but each use gives a `FutureWarning`, and code that names CUDA runs nowhere else."""
    instead = """\
Name the device.

```python
with torch.amp.autocast("cuda"):
    ...
scaler = torch.amp.GradScaler("cuda")
```"""
    fix_safety = "The new names mean the same; positional arguments of `autocast` become keywords."
    facts = ("amp-import-deprecated",)
    tokens = (b"cuda.amp", b"cpu.amp", b"torch.cuda import", b"torch.cpu import")

    def check_syntax(self, module: Module) -> Iterator[Finding]:
        for node in _spelled(module):
            written = _old(module, node) if isinstance(node, ast.Attribute) else _imported(node)
            if written is not None and not _is_compatibility(module, node):
                yield self.finding(
                    module.location(node),
                    f"{written} is deprecated and gives a FutureWarning. Use {_new(written)} and name the device.",
                )

    def fix(self, finding: Finding, module: Module) -> Fix | None:
        edits: list[Edit | None] = []
        match next((n for n in _spelled(module) if module.location(n) == finding.at), None):
            case ast.Attribute() as node:
                edits = [_rename(module, node), *_arguments(module, node)]
            case ast.ImportFrom() as node:
                edits = _rewrite_import(module, node)
        certain = [e for e in edits if e is not None]
        if not certain or len(certain) != len(edits):
            return None
        return Fix("Use torch.amp", tuple(certain))

    wrong = (
        """\
import torch

model = torch.nn.Linear(8, 2)
with torch.cpu.amp.autocast(dtype=torch.bfloat16):  # FL210
    loss = model(torch.randn(4, 8)).mean()
""",
        """\
import torch
from torch.cuda.amp import GradScaler, autocast  # FL210

model = torch.nn.Linear(8, 2)
scaler = GradScaler(enabled=torch.cuda.is_available())


@autocast(False)
def loss(inputs):
    return model(inputs.float()).mean()


with autocast(enabled=torch.cuda.is_available()):
    print(loss(torch.randn(4, 8)))
""",
        """\
import torch
from torch.cuda import amp  # FL210

scaler = amp.GradScaler(2.0**10, enabled=torch.cuda.is_available())
with amp.autocast(enabled=torch.cuda.is_available()):
    print(torch.randn(2, 2) @ torch.randn(2, 2))
""",
        """\
import torch


class Double(torch.autograd.Function):
    @staticmethod
    @torch.cuda.amp.custom_fwd  # FL210
    def forward(ctx, x):
        return x * 2

    @staticmethod
    @torch.cuda.amp.custom_bwd  # FL210
    def backward(ctx, grad):
        return grad * 2
""",
    )
    right = (
        """\
import torch

model = torch.nn.Linear(8, 2)
with torch.amp.autocast("cpu", dtype=torch.bfloat16):
    loss = model(torch.randn(4, 8)).mean()
scaler = torch.amp.GradScaler("cuda", enabled=torch.cuda.is_available())
""",
        # old torch and new
        """\
import torch

try:
    from torch.amp import GradScaler
except ImportError:
    from torch.cuda.amp import GradScaler

scaler = GradScaler(enabled=torch.cuda.is_available())
""",
        # other things of torch.cuda
        """\
import torch
from torch.cuda import is_available

print(is_available(), torch.cuda.device_count())
with torch.autocast("cpu"):
    print(torch.randn(2, 2) @ torch.randn(2, 2))
""",
    )


def _spelled(module: Module) -> Iterator[ast.Attribute | ast.ImportFrom | ast.Import]:
    """Where the old package is written out."""
    yield from module.all(ast.ImportFrom)
    yield from module.all(ast.Import)
    yield from module.all(ast.Attribute)


def _imported(node: ast.ImportFrom | ast.Import) -> str | None:
    """The old name that this import brings in."""
    match node:
        case ast.Import(names):
            return next((a.name for a in names if a.asname and _is_package(a.name)), None)
        case ast.ImportFrom(str(package), [first, *_]) if _is_package(package):
            return f"{package}.{first.name}"
        case ast.ImportFrom("torch.cuda" | "torch.cpu" as package, names):
            return f"{package}.amp" if any(a.name == "amp" for a in names) else None
    return None


def _is_package(name: str) -> bool:
    return any(name == f"torch.{d}.amp" or name.startswith(f"torch.{d}.amp.") for d in _DEVICES)


def _old(module: Module, node: ast.Attribute) -> str | None:
    """The old name that a dotted expression writes out; what an import brought in is reported at the import."""
    name = (module.resolve(node) or "") if node.attr in _NAMES else ""
    written = module.segment(node).replace(" ", "")
    spelled = _is_package(name) and ".amp." in written and _root_is_torch(module, node)
    return name if spelled else None


def _root_is_torch(module: Module, node: ast.AST) -> bool:
    while isinstance(node, ast.Attribute):
        node = node.value
    return module.resolve(node) == "torch"


def _new(written: str) -> str:
    return written.replace("torch.cuda.amp", "torch.amp").replace("torch.cpu.amp", "torch.amp")


def _is_compatibility(module: Module, node: ast.AST) -> bool:
    """One of two ways, for old torch and new: the file also knows torch.amp."""
    if not isinstance(node, ast.Attribute) and module.enclosing(node, ast.Try, ast.ExceptHandler):
        return True
    branch = module.enclosing(node, ast.If, ast.IfExp)
    names = (module.resolve(n) or "" for n in ast.walk(branch or ast.Pass()))
    return any(name.startswith(("torch.amp.", "torch.__version__")) for name in names)


def _device(name: str) -> str:
    return "cpu" if name.startswith("torch.cpu.") else "cuda"


def _rename(module: Module, node: ast.Attribute) -> Edit | None:
    """`torch.cuda.amp.autocast` → `torch.amp.autocast`, the name alone."""
    match node.value:
        case ast.Attribute(ast.Attribute(root)):
            return Editor(module).replace(node, f"{module.segment(root)}.amp.{node.attr}")
    return None


def _arguments(module: Module, node: ast.expr) -> list[Edit | None]:
    """The edits that name the device where this old name is used; [None] where they are not certain."""
    name = module.resolve(node) or ""
    kind, device = name.rpartition(".")[2], _device(name)
    match module.parent(node):
        case ast.Call(func) as call if func is node:
            return _in_call(module, call, node, kind, device)
        case ast.FunctionDef(decorator_list=how) if kind.startswith("custom_") and node in how:
            at = module.source.location(node)
            assert at.end_line is not None and at.end_column is not None
            text = f'(device_type="{device}")'
            return [Editor(module).insert(at.end_line, at.end_column, text)]
    return [] if kind == "GradScaler" else [None]


def _add(module: Module, call: ast.Call, node: ast.expr, text: str) -> Edit | None:
    """A first argument."""
    at = module.source.location(node)
    assert at.end_line is not None and at.end_column is not None
    line = module.source.lines[at.end_line - 1]
    if line[at.end_column - 1 : at.end_column] != "(":
        return None
    more = ", " if call.args or call.keywords else ""
    return Editor(module).insert(at.end_line, at.end_column + 1, text + more)


def _rewrite_import(module: Module, node: ast.ImportFrom) -> list[Edit | None]:
    """`from torch.cuda.amp import autocast`, or `from torch.cuda import amp`, and every use of what it brought in."""
    package = node.module or ""
    names = {a.name for a in node.names}
    whole = package in {"torch.cuda", "torch.cpu"} and names == {"amp"}
    at = module.source.location(node)
    column = module.source.lines[at.line - 1].find(package, at.column - 1)
    if (not whole and (not _is_package(package) or not names <= set(_NAMES))) or column < 0:
        return [None]
    new = "torch" if whole else "torch.amp"
    edits: list[Edit | None] = [Edit(at.line, column + 1, at.line, column + 1 + len(package), new)]
    local = {a.asname or a.name for a in node.names}
    for used in module.all(ast.Name):
        if (
            used.id in local
            and isinstance(used.ctx, ast.Load)
            and (module.resolve(used) or "").startswith(package)
        ):
            up = module.parent(used)
            if not whole:
                edits += _arguments(module, used)
            elif isinstance(up, ast.Attribute) and up.attr in _NAMES:
                edits += _arguments(module, up)
            else:
                return [None]
    return edits


def _in_call(
    module: Module, call: ast.Call, node: ast.expr, kind: str, device: str
) -> list[Edit | None]:
    """The device as the first argument; the positional ones of autocast become keywords."""
    if module.has_star(call):
        return [None]
    if kind.startswith("custom_"):
        return [None] if call.args else [_add(module, call, node, f'device_type="{device}"')]
    edits: list[Edit | None] = [_add(module, call, node, f'"{device}"')]
    if kind == "autocast":
        if len(call.args) > len(_AUTOCAST_ARGUMENTS):
            return [None]
        edits += [
            Editor(module).insert(a.lineno, module.source.location(a).column, f"{k}=")
            for k, a in zip(_AUTOCAST_ARGUMENTS, call.args, strict=False)
        ]
    return edits
