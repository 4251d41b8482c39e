"""FL215: autocast(enabled=False) around half-precision inputs without .float()."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from fallline.events import AutocastOff, Trace
from fallline.finding import Finding, Severity
from fallline.flow.calls import of_self
from fallline.flow.modules import looks_like_model
from fallline.flow.precision import (
    KEEPS,
    LOW,
    autocast_around,
    is_layer,
    is_low,
    is_off,
    is_widened,
)
from fallline.flow.values import values_of
from fallline.rule import Rule
from fallline.syntax import Module
from fallline.syntax.nodes import below, names_read

_MESSAGE = (
    "Autocast is turned off here, but {what} is already in half precision, so this code runs in half precision throughout, even the operations that autocast "
    "would have kept in float32. Cast the inputs with .float()."
)
_ABOUT = frozenset(
    {
        "shape",
        "size",
        "dim",
        "device",
        "dtype",
        "ndim",
        "numel",
        "detach",
        "requires_grad",
        "is_cuda",
    }
)


class AutocastOffWithoutCast(Rule):
    code = "FL215"
    name = "autocast-off-without-cast"
    severity = Severity.ERROR
    what = """\
Autocast is turned off around code whose inputs are already in half precision, and they are not cast to float32.

`autocast(enabled=False)` stops casting; it does not undo it."""
    why = """\
The code then runs entirely in half precision, where autocast would have run `exp`, `log`, `sum`, `softmax` and norms in float32 on CUDA.

Turning autocast off this way to cure a NaN can cause one: a contrastive loss that was finite under autocast became NaN."""
    instead = """\
Turn autocast off and cast what goes in.

```python
with torch.autocast("cuda", enabled=False):
    loss = contrastive_loss(features.float())
```"""
    facts = (
        "autocast-exp-is-fp32-on-cuda",
        "autocast-off-needs-float",
        "autocast-reductions-per-device",
    )
    tokens = (b"autocast",)

    def check(self, trace: Trace) -> Iterator[Finding]:
        for event in trace.of(AutocastOff):
            if event.half is True:
                yield self.finding(event, _MESSAGE.format(what="the input"))

    def check_syntax(self, module: Module) -> Iterator[Finding]:
        for block in module.all(ast.With):
            off = next(
                (i.context_expr for i in block.items if is_off(module, i.context_expr)), None
            )
            if off is None:
                continue
            name = _low_name(module, block.body, _low_outside(module, block))
            likely = _low_name(module, block.body, _likely_low(module, block)) if not name else None
            if name is not None or likely is not None:
                yield self.finding(
                    module.location(off),
                    _MESSAGE.format(what=f"`{name or likely}`"),
                    # autocast may be off around it, or the network may end in float32
                    severity=None if name else Severity.WARNING,
                )
        for function in module.all(ast.FunctionDef):
            off = next((d for d in function.decorator_list if is_off(module, d)), None)
            if off is not None:
                name = _low_name(module, function.body, _low_parameters(module, function))
                if name is not None:
                    yield self.finding(module.location(off), _MESSAGE.format(what=f"`{name}`"))

    wrong = (
        """\
import torch

model = torch.nn.Linear(8, 16)
images = torch.randn(4, 8)
with torch.autocast("cpu", dtype=torch.float16):
    features = model(images)
    with torch.autocast("cpu", enabled=False):  # FL215
        loss = torch.logsumexp(features @ features.t(), dim=1).mean()
""",
        """\
import torch

encoder = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 16))


def contrastive(features):
    with torch.amp.autocast("cpu", enabled=False):  # FL215
        return torch.logsumexp(features @ features.t() / 0.5, dim=1).mean()


with torch.amp.autocast("cpu", dtype=torch.bfloat16):
    z = encoder(torch.randn(4, 8))
    loss = contrastive(z)
""",
    )
    right = (
        """\
import torch

model = torch.nn.Linear(8, 16)
images = torch.randn(4, 8)
with torch.autocast("cpu", dtype=torch.float16):
    features = model(images)
    with torch.autocast("cpu", enabled=False):
        features = features.float()
        loss = torch.logsumexp(features @ features.t(), dim=1).mean()
""",
        # never under autocast: the inputs are float32
        """\
import torch

model = torch.nn.Linear(8, 16)
features = model(torch.randn(4, 8))
with torch.autocast("cpu", enabled=False):
    loss = torch.logsumexp(features @ features.t(), dim=1).mean()
""",
        # what goes in was not made by a half-precision operation
        """\
import torch

model = torch.nn.Linear(8, 16)
frequencies = torch.arange(16.0)
with torch.autocast("cpu", dtype=torch.bfloat16):
    features = model(torch.randn(4, 8))
    with torch.autocast("cpu", enabled=False):
        angles = torch.outer(torch.arange(4.0), frequencies)
    loss = (features * angles.cos()).mean()
""",
        # the cast is at the call
        """\
import torch

encoder = torch.nn.Linear(8, 16)


@torch.autocast("cpu", enabled=False)
def spread(features):
    return torch.exp(features @ features.t()).mean()


with torch.autocast("cpu", dtype=torch.bfloat16):
    z = encoder(torch.randn(4, 8))
    loss = spread(z.float())
""",
    )


def _low_outside(module: Module, block: ast.With) -> set[str]:
    """Names that hold half precision when this block begins."""
    around = autocast_around(module, block)
    if around is not None:
        return set() if is_off(module, around) else _low_loads(module, block)
    function = module.function(block)
    return _low_parameters(module, function) if function is not None else set()


def _likely_low(module: Module, block: ast.With) -> set[str]:
    """Names that hold what a layer of this class gave before the block, or what callers got from a network under autocast."""
    function = module.function(block)
    if not isinstance(function, ast.FunctionDef) or autocast_around(module, block) is not None:
        return set()
    regions = [
        c
        for c in module.calls("torch.autocast", "torch.amp.autocast", "torch.cuda.amp.autocast")
        if not is_off(module, c)
    ]
    if not regions:
        return set()
    names = {n.id: n for s in block.body for n in names_read(s)}
    return {n for n, use in names.items() if _from_a_layer(module, use, block)} | {
        n for n in names if _from_a_network(module, function, n)
    }


def _unshaped(made: ast.expr) -> ast.expr:
    while (
        isinstance(made, ast.Call)
        and isinstance(made.func, ast.Attribute)
        and made.func.attr in KEEPS
    ):
        if of_self(made.func) is not None:
            break
        made = made.func.value
    return made


def _from_a_layer(module: Module, use: ast.Name, block: ast.With) -> bool:
    """`logits` after `logits = self.proj(x).view(b, -1)`, above the block."""
    values = [values_of(module).bound_to(b) for b in module.bindings(use.id, module.scope(use))]
    match values:
        case [ast.Call() as value] if value.lineno < block.lineno:
            made = _unshaped(value)
            return isinstance(made, ast.Call) and is_layer(module, made.func)
    return False


def _from_a_network(module: Module, function: ast.FunctionDef, name: str) -> bool:
    """An argument for which a caller hands over `verts`, made by `verts = net(image)` under the same autocast."""
    argument = next((a for a in function.args.args if a.arg == name), None)
    for value in values_of(module).passed(argument) if argument is not None else ():
        made = values_of(module).origin(value)
        if isinstance(made, ast.Call) and looks_like_model(made.func):
            around = autocast_around(module, made)
            if around is not None and not is_off(module, around):
                return True
    return False


def _low_loads(module: Module, block: ast.With) -> set[str]:
    inside = {id(n) for s in block.body for n in ast.walk(s)}
    found = set()
    for statement in block.body:
        for node in names_read(statement):
            if node.id not in found:
                bound = module.bindings(node.id, module.scope(node))
                if not any(id(b) in inside for b in bound) and is_low(module, node, LOW):
                    found.add(node.id)
    return found


def _low_parameters(module: Module, function: ast.FunctionDef | ast.AsyncFunctionDef) -> set[str]:
    """Parameters of a function of this file that are given half precision where it is called under autocast."""
    names = [a.arg for a in [*function.args.posonlyargs, *function.args.args]]
    found = set()
    for call in module.all(ast.Call):
        if not isinstance(call.func, ast.Name) or call.func.id != function.name:
            continue
        given = [
            *zip(names, call.args, strict=False),
            *((k.arg, k.value) for k in call.keywords if k.arg),
        ]
        around = autocast_around(module, call)
        if around is not None and not is_off(module, around):
            found |= {name for name, value in given if is_low(module, value, LOW)}
    return found


def _low_name(module: Module, body: list[ast.stmt], low: set[str]) -> str | None:
    """The first of these names that is computed with as it is, by torch."""
    if not low:
        return None
    rebound = {n.id for s in body for n in below(s, ast.Name) if isinstance(n.ctx, ast.Store)}
    for statement in body:
        for node in below(statement, ast.Name):
            if node.id in low - rebound and _computes(module, node):
                return node.id
    return None


def _computes(module: Module, node: ast.Name) -> bool:
    """This use of a name is an operand of an operation of torch's own."""
    up = module.parent(node)
    if isinstance(up, ast.BinOp):
        return True
    if isinstance(up, ast.Attribute):
        called = module.parent(up)
        if (
            not isinstance(called, ast.Call)
            or called.func is not up
            or up.attr in _ABOUT
            or is_widened(module, called)
        ):
            return False
        return up.attr in KEEPS
    if isinstance(up, ast.Call) and node in up.args:
        made = module.value(up.func) if isinstance(up.func, ast.Name) else None
        name = module.resolve(made.func if isinstance(made, ast.Call) else up.func) or ""
        return name.startswith(("torch.nn.", "torch."))
    return False
