"""FL806 saturating-deep: many sigmoid or tanh layers in a row, with nothing that keeps the gradient alive."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass

from fallline.finding import Finding, Severity
from fallline.flow.modules import module_class
from fallline.rule import Rule
from fallline.syntax import Module

# Depth from which the first layer's gradient is far below the last one's with PyTorch's default initialisation (`fallline prove FL806`).
SIGMOID_LAYERS = 5
TANH_LAYERS = 10

_WEIGHTS = re.compile(r"torch\.nn\.(Lazy)?(Linear|Conv(Transpose)?\dd)")
_SIGMOID = frozenset({"torch.nn.Sigmoid", "torch.nn.functional.sigmoid"})
_TANH = frozenset({"torch.nn.Tanh", "torch.nn.functional.tanh"})
_KEEPS_SCALE = re.compile(r"xavier_|glorot|orthogonal_|sparse_\(|calculate_gain")


@dataclass
class Stack:
    """What a chain of layers is made of; `unknown` counts parts that cannot be seen into."""

    sigmoid: int = 0
    tanh: int = 0
    weights: int = 0
    norms: int = 0
    unknown: int = 0

    def __add__(self, other: Stack) -> Stack:
        return Stack(*(a + b for a, b in zip(self._all(), other._all(), strict=True)))

    def __mul__(self, times: int) -> Stack:
        return Stack(*(a * times for a in self._all()))

    def _all(self) -> tuple[int, ...]:
        return (self.sigmoid, self.tanh, self.weights, self.norms, self.unknown)

    def saturates(self, tanh_counts: bool) -> bool:
        deep = (
            self.sigmoid / SIGMOID_LAYERS + (self.tanh / TANH_LAYERS if tanh_counts else 0.0) >= 1
        )
        return (
            deep
            and not self.norms
            and not self.unknown
            and self.weights >= self.sigmoid + self.tanh
        )


class SaturatingDeep(Rule):
    code = "FL806"
    name = "saturating-deep"
    severity = Severity.WARNING
    what = (
        "A deep stack of sigmoid or tanh layers has neither residual connections nor normalisation."
    )
    why = (
        "The derivative of sigmoid is at most 0.25, and both functions flatten where they saturate, so the gradient shrinks with every layer. "
        "With PyTorch's default initialisation the first of 5 sigmoid layers gets less than a thousandth of the last one's gradient, and so does the first of 20 tanh "
        "layers: early layers do not learn."
    )
    instead = "Use ReLU or GELU with He initialisation, or residual connections, or BatchNorm, or LayerNorm after the activation (before a sigmoid it does not help). For tanh alone, Xavier initialisation is enough."
    facts = ("initialisation-before-activation", "he-and-xavier-keep-scale", "saturation")
    references = ("https://proceedings.mlr.press/v9/glorot10a.html",)
    tokens = (b"igmoid", b"anh")

    wrong = (
        """\
from torch import nn

model = nn.Sequential(  # FL806
    *[nn.Sequential(nn.Linear(64, 64), nn.Sigmoid()) for _ in range(12)],
    nn.Linear(64, 10),
)
""",
        """\
import torch
from torch import nn


class Deep(nn.Module):
    def __init__(self, depth=20):
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(64, 64) for _ in range(depth)])
        self.head = nn.Linear(64, 10)

    def forward(self, x):
        for layer in self.layers:
            x = torch.tanh(layer(x))  # FL806
        return self.head(x)
""",
        """\
import torch.nn as nn


def build(width):
    layers = []
    for _ in range(8):
        layers.append(nn.Linear(width, width))
        layers.append(nn.Sigmoid())
    layers.append(nn.Linear(width, 1))
    return nn.Sequential(*layers)  # FL806
""",
        """\
import torch
import torch.nn as nn


class Deep(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc1 = nn.Linear(32, 32)
        self.fc2 = nn.Linear(32, 32)
        self.fc3 = nn.Linear(32, 32)
        self.fc4 = nn.Linear(32, 32)
        self.fc5 = nn.Linear(32, 32)
        self.out = nn.Linear(32, 1)

    def forward(self, x):
        x = torch.sigmoid(self.fc1(x))  # FL806
        x = torch.sigmoid(self.fc2(x))
        x = torch.sigmoid(self.fc3(x))
        x = torch.sigmoid(self.fc4(x))
        x = torch.sigmoid(self.fc5(x))
        return self.out(x)
""",
    )
    right = (
        """\
from torch import nn

small = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 1), nn.Sigmoid())
normalised = nn.Sequential(*[nn.Sequential(nn.Linear(64, 64), nn.Sigmoid(), nn.LayerNorm(64)) for _ in range(12)])
relu = nn.Sequential(*[nn.Sequential(nn.Linear(64, 64), nn.ReLU()) for _ in range(12)], nn.Sigmoid())
""",
        """\
import torch
from torch import nn


class Residual(nn.Module):
    def __init__(self, depth=20):
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(64, 64) for _ in range(depth)])

    def forward(self, x):
        for layer in self.layers:
            x = x + torch.tanh(layer(x))
        return x


class Cell(nn.Module):
    def __init__(self):
        super().__init__()
        self.gates = nn.ModuleList([nn.Linear(8, 8) for _ in range(6)])

    def forward(self, x, h):
        i, f, o = (torch.sigmoid(g(x) + g(h)) for g in self.gates[:3])
        i = torch.sigmoid(self.gates[3](x))
        f = torch.sigmoid(self.gates[4](x))
        return torch.sigmoid(o) * torch.tanh(h) + i * f
""",
        """\
from torch import nn


class Physics(nn.Module):
    def __init__(self):
        super().__init__()
        layers = []
        for _ in range(12):
            layers += [nn.Linear(50, 50), nn.Tanh()]
        self.net = nn.Sequential(*layers)
        for layer in self.net:
            if isinstance(layer, nn.Linear):
                nn.init.xavier_normal_(layer.weight)
""",
    )

    def check_syntax(self, module: Module) -> Iterator[Finding]:
        if not any(True for _ in module.calls(*_SIGMOID, *_TANH)) and not any(
            True for _ in module.method_calls("sigmoid", "tanh")
        ):
            return
        tanh_counts = _KEEPS_SCALE.search(module.source.text) is None
        for call in module.calls("torch.nn.Sequential"):
            inside = module.enclosing(call, ast.Call)
            if inside is not None and module.resolve(inside.func) == "torch.nn.Sequential":
                continue
            stack = _sum(module, call.args)
            if stack.saturates(tanh_counts):
                yield self._report(module, call, stack)
        for forward, found in _chains(module).items():
            cls = module.class_(forward)
            if cls is None or _has_shortcut(forward):
                continue
            stack = Stack(norms=_norms(module, cls))
            for call, kind in found:
                once = Stack(sigmoid=int(kind in _SIGMOID), tanh=int(kind in _TANH), weights=1)
                stack += once * (_times(module, cls, module.statement(call)) or 0)
            if stack.saturates(tanh_counts):
                yield self._report(module, found[0][0], stack)

    def _report(self, module: Module, call: ast.Call, stack: Stack) -> Finding:
        parts = [
            f"{n} {what}" for n, what in ((stack.sigmoid, "sigmoid"), (stack.tanh, "tanh")) if n
        ]
        return self.finding(
            module.location(call),
            f"{' and '.join(parts)} layers in a row without normalisation or residual connections: gradients vanish on the way to the first layers.",
            sigmoid_layers=stack.sigmoid,
            tanh_layers=stack.tanh,
            threshold={"sigmoid": SIGMOID_LAYERS, "tanh": TANH_LAYERS},
        )


def _chains(module: Module) -> dict[ast.FunctionDef, list[tuple[ast.Call, str]]]:
    """`x = torch.sigmoid(self.fc(x))`, line after line or in a loop, by the forward they are in."""
    found: dict[ast.FunctionDef, list[tuple[ast.Call, str]]] = {}
    for statement in module.all(ast.Assign):
        call = _activation_of_layer(statement)
        kind = _activation(module, call) if call is not None else None
        if call is not None and kind is not None:
            function = module.function(call)
            if isinstance(function, ast.FunctionDef) and function.name == "forward":
                found.setdefault(function, []).append((call, kind))
    return found


def _activation(module: Module, call: ast.Call) -> str | None:
    """Which of the two this call is: a function, a method of the tensor, or a layer kept in `self`."""
    name = module.resolve(call.func)
    if name is None and isinstance(call.func, ast.Attribute):
        if not call.args:
            name = f"torch.nn.functional.{call.func.attr}"
        elif isinstance(call.func.value, ast.Name) and call.func.value.id == "self":
            cls = module.class_(call)
            values = module.attribute_values(cls, call.func.attr) if cls is not None else []
            made = values[0] if len(values) == 1 else None
            name = module.resolve(made.func) if isinstance(made, ast.Call) else None
    return name if name in _SIGMOID | _TANH else None


def _norms(module: Module, cls: ast.ClassDef) -> int:
    return sum(
        "norm" in module.segment(n.func).lower() for n in ast.walk(cls) if isinstance(n, ast.Call)
    )


def _sum(module: Module, parts: list[ast.expr]) -> Stack:
    total = Stack()
    for part in parts:
        total += _count(module, part)
    return total


def _count(module: Module, node: ast.expr) -> Stack:
    """What one argument of a Sequential adds to the chain."""
    if isinstance(node, ast.Starred):
        return _count(module, node.value)
    if isinstance(node, ast.Call):
        return _count_call(module, node)
    if isinstance(node, ast.List | ast.Tuple):
        return _sum(module, node.elts)
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        return _count(module, node.left) + _count(module, node.right)
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mult):
        times = _number(module, node.right)
        return _count(module, node.left) * times if times is not None else Stack(unknown=1)
    if isinstance(node, ast.ListComp | ast.GeneratorExp):
        return _count_comprehension(module, node)
    if isinstance(node, ast.Name):
        return _count_list(module, node)
    return Stack(unknown=1)


def _count_call(module: Module, call: ast.Call) -> Stack:
    name = module.resolve(call.func) or ""
    if name == "torch.nn.Sequential":
        return _sum(module, call.args)
    if name in _SIGMOID:
        return Stack(sigmoid=1)
    if name in _TANH:
        return Stack(tanh=1)
    if _WEIGHTS.fullmatch(name):
        return Stack(weights=1)
    if "Norm" in name:
        return Stack(norms=1)
    return (
        Stack()
        if name.startswith("torch.nn.") and module_class(module, call.func) is None
        else Stack(unknown=1)
    )


def _count_comprehension(module: Module, node: ast.ListComp | ast.GeneratorExp) -> Stack:
    times = 1
    parts = [node.elt]
    for generator in node.generators:
        if (
            isinstance(generator.iter, ast.Tuple | ast.List)
            and isinstance(node.elt, ast.Name)
            and isinstance(generator.target, ast.Name)
            and generator.target.id == node.elt.id
        ):
            parts = generator.iter.elts
            continue
        count = _range(module, generator.iter)
        if count is None or generator.ifs:
            return Stack(unknown=1)
        times *= count
    return _sum(module, parts) * times


def _count_list(module: Module, name: ast.Name) -> Stack:
    """A local list that is filled and then unpacked into Sequential."""
    scope = module.scope(name)
    total = Stack()
    bound = module.bindings(name.id, scope)
    if not bound:
        return Stack(unknown=1)
    for target in bound:
        up = module.parent(target)
        if isinstance(up, ast.Assign | ast.AugAssign | ast.AnnAssign) and isinstance(
            up.value, ast.List | ast.ListComp
        ):
            total += _count(module, up.value) * (_loop_times(module, up, scope) or 0)
        else:
            return Stack(unknown=1)
    for call in module.method_calls("append", "extend", "insert"):
        assert isinstance(call.func, ast.Attribute)
        receiver = call.func.value
        if (
            isinstance(receiver, ast.Name)
            and receiver.id == name.id
            and module.scope(call) is scope
            and call.args
        ):
            times = _loop_times(module, call, scope)
            total += (
                _count(module, call.args[-1]) * times if times is not None else Stack(unknown=1)
            )
    return total


def _loop_times(module: Module, node: ast.AST, scope: ast.AST | None) -> int | None:
    """How often the loops around a node run it, where their ranges are known."""
    times = 1
    for up in module.parents(node):
        if up is scope:
            break
        if isinstance(up, ast.For):
            count = _range(module, up.iter)
            if count is None:
                return None
            times *= count
        elif isinstance(up, ast.While | ast.If):
            return None
    return times


def _range(module: Module, node: ast.expr) -> int | None:
    if (
        not isinstance(node, ast.Call)
        or not isinstance(node.func, ast.Name)
        or node.func.id != "range"
        or not node.args
    ):
        return None
    bounds = [_number(module, a) for a in node.args[:2]]
    if len(node.args) > 2 or None in bounds:
        return None
    known = [b for b in bounds if b is not None]
    return max(0, known[0] if len(known) == 1 else known[1] - known[0])


def _number(module: Module, node: ast.expr) -> int | None:
    """A whole number, also through plain arithmetic and through the default of a parameter."""
    found = module.number(node)
    if found is not None:
        return int(found)
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add | ast.Sub):
        left, right = _number(module, node.left), _number(module, node.right)
        if left is None or right is None:
            return None
        return left + right if isinstance(node.op, ast.Add) else left - right
    scope = module.scope(node)
    if isinstance(node, ast.Name) and isinstance(scope, ast.FunctionDef):
        named = scope.args.posonlyargs + scope.args.args
        for arg, default in zip(reversed(named), reversed(scope.args.defaults), strict=False):
            if arg.arg == node.id:
                value = module.number(default)
                return int(value) if value is not None else None
    return None


def _activation_of_layer(statement: ast.Assign) -> ast.Call | None:
    """`x = act(layer(x))` or `x = layer(x).act()`: the activation call."""
    target, call = statement.targets[0], statement.value
    if not isinstance(target, ast.Name) or not isinstance(call, ast.Call) or len(call.args) > 1:
        return None
    inner: ast.expr | None = call.args[0] if call.args else None
    if inner is None and isinstance(call.func, ast.Attribute):
        inner = call.func.value
    if not isinstance(inner, ast.Call) or len(inner.args) != 1:
        return None
    fed = inner.args[0]
    return call if isinstance(fed, ast.Name) and fed.id == target.id else None


def _times(module: Module, cls: ast.ClassDef, statement: ast.AST) -> int | None:
    """Once, or as often as a loop over `self.layers` of known length runs."""
    loop = module.enclosing(statement, ast.For, ast.If, ast.While, ast.FunctionDef)
    if isinstance(loop, ast.FunctionDef):
        return 1
    if not isinstance(loop, ast.For):
        return None
    over = loop.iter
    if (
        isinstance(over, ast.Attribute)
        and isinstance(over.value, ast.Name)
        and over.value.id == "self"
    ):
        values = module.attribute_values(cls, over.attr)
        made = values[0] if len(values) == 1 else None
        if isinstance(made, ast.Call) and module.resolve(made.func) == "torch.nn.ModuleList":
            stack = _sum(module, made.args) + _appended(module, cls, over.attr)
            return stack.weights if not stack.unknown and not stack.norms else None
    return None


def _appended(module: Module, cls: ast.ClassDef, name: str) -> Stack:
    """What `self.<name>.append(...)` adds, as often as the loops around it run."""
    total = Stack()
    for call in module.method_calls("append"):
        assert isinstance(call.func, ast.Attribute)
        holder = call.func.value
        if (
            isinstance(holder, ast.Attribute)
            and holder.attr == name
            and module.class_(call) is cls
            and call.args
        ):
            times = _loop_times(module, call, module.scope(call))
            total += _count(module, call.args[0]) * times if times is not None else Stack(unknown=1)
    return total


def _has_shortcut(forward: ast.FunctionDef) -> bool:
    """An addition or a concatenation may carry the gradient past the layers."""
    for node in ast.walk(forward):
        if isinstance(node, ast.BinOp | ast.AugAssign) and isinstance(node.op, ast.Add):
            return True
        if (
            isinstance(node, ast.Call)
            and isinstance(node.func, ast.Attribute)
            and node.func.attr in {"cat", "concat", "add", "stack"}
        ):
            return True
    return False
