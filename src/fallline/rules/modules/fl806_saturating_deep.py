"""FL806 saturating-deep: many sigmoid or tanh layers in a row, with nothing that keeps the gradient alive."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from fallline.finding import Finding, Severity
from fallline.flow.stacks import Stack, forward_stacks, stack_of
from fallline.rule import Rule
from fallline.syntax import Module

# Depth from which the first layer's gradient is far below the last one's with PyTorch's default initialisation (`fallline prove FL806`).
SIGMOID_LAYERS = 5
TANH_LAYERS = 10
_KEEPS_SCALE = re.compile(r"xavier_|glorot|orthogonal_|sparse_\(|calculate_gain")


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
        for call, stack in [*_sequentials(module), *forward_stacks(module)]:
            if stack.norms or stack.unknown or stack.weights < stack.sigmoid + stack.tanh:
                continue
            deep = stack.sigmoid / SIGMOID_LAYERS
            if deep < 1 and not _KEEPS_SCALE.search(module.source.text):
                deep += stack.tanh / TANH_LAYERS
            if deep >= 1:
                yield self._report(module, call, stack)

    def _report(self, module: Module, call: ast.Call, stack: Stack) -> Finding:
        counted = ((stack.sigmoid, "sigmoid"), (stack.tanh, "tanh"))
        parts = " and ".join(f"{n} {what}" for n, what in counted if n)
        return self.finding(
            module.location(call),
            f"{parts} layers in a row have no normalisation and no residual connection, so the gradient all but vanishes before it reaches "
            "the first ones. Use ReLU or GELU, or add BatchNorm or residual connections",
            sigmoid_layers=stack.sigmoid,
            tanh_layers=stack.tanh,
            threshold={"sigmoid": SIGMOID_LAYERS, "tanh": TANH_LAYERS},
        )


def _sequentials(module: Module) -> Iterator[tuple[ast.Call, Stack]]:
    """Every Sequential that is not inside another one."""
    for call in module.calls("torch.nn.Sequential"):
        inside = module.enclosing(call, ast.Call)
        if inside is None or module.resolve(inside.func) != "torch.nn.Sequential":
            yield call, stack_of(module, *call.args)
