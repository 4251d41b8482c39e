"""FL812: a table that is meant to be fixed is a Parameter, so the optimizer changes it."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from typing import Any

from fallline.finding import Finding, Severity
from fallline.flow.calls import last_name, of_self
from fallline.rules._observed import Observed
from fallline.syntax import Module
from fallline.syntax.nodes import below

_SAYS_FIXED = re.compile(
    r"\bfixed\b|\bfrozen\b|not (be )?(trained|learned)|non-?(trainable|learnable)|\bconstant\b",
    re.I,
)
_FIXED_TABLE = re.compile(
    r"sin_?cos|sinusoid|positional_encoding_table|mel_filter|dct_matrix", re.IGNORECASE
)
_PARAMETER = frozenset({"torch.nn.Parameter", "torch.nn.parameter.Parameter"})


class ConstantTrained(Observed):
    code = "FL812"
    name = "constant-trained"
    severity = Severity.WARNING
    what = "A table that is computed once and meant to stay, such as sine-cosine positions, is an nn.Parameter that requires a gradient."
    why = """\
The optimizer changes it with every update, and weight decay pulls it to zero, so the positions (or the filters) drift away from what was computed.

It also costs optimizer state, and a checkpoint trained this way no longer matches the formula."""
    instead = """\
Keep it as a buffer, or switch its gradient off.

- `self.register_buffer("positions", build_sincos(...))`
- `self.positions = nn.Parameter(build_sincos(...), requires_grad=False)`"""
    tokens = (b"sin", b"mel_filter", b"dct_matrix", b"positional_encoding_table")
    wrong = (
        """\
import torch
from torch import nn


def build_sincos_table(length, size):
    angle = torch.arange(length)[:, None] / 10000 ** (torch.arange(0, size, 2) / size)
    return torch.cat([angle.sin(), angle.cos()], dim=1)


class Embed(nn.Module):
    "Adds fixed positions."

    def __init__(self, length=16, size=8):
        super().__init__()
        self.positions = nn.Parameter(torch.zeros(length, size))
        with torch.no_grad():
            table = build_sincos_table(length, size)
            self.positions.data.copy_(table)  # FL812

    def forward(self, x):
        return x + self.positions
""",
        """\
from torch import nn

from positions import get_2d_sincos_pos_embed


class Patches(nn.Module):
    def __init__(self, size, grid):
        super().__init__()
        self.pos_embed = nn.Parameter(get_2d_sincos_pos_embed(size, grid))  # FL812

    def forward(self, x):
        return x + self.pos_embed
""",
    )
    right = (
        """\
import torch
from torch import nn

from positions import get_2d_sincos_pos_embed


class Patches(nn.Module):
    def __init__(self, size, grid):
        super().__init__()
        self.pos_embed = nn.Parameter(torch.zeros(1, grid**2, size), requires_grad=False)
        self.pos_embed.data.copy_(get_2d_sincos_pos_embed(size, grid))
        self.other = nn.Parameter(get_2d_sincos_pos_embed(size, grid))
        self.other.requires_grad = False
        self.register_buffer("table", get_2d_sincos_pos_embed(size, grid))
        self.learned = nn.Parameter(torch.randn(1, grid**2, size))
""",
    )

    def check_syntax(self, module: Module) -> Iterator[Finding]:
        for node, name in _filled(module):
            cls = module.class_(node)
            if cls is not None and _is_trained(module, cls, name):
                yield self.finding(
                    module.location(node),
                    f"`self.{name}` is filled with a fixed table but is an nn.Parameter that requires a gradient, so the optimizer changes it with every "
                    "update. Register it as a buffer, or pass `requires_grad=False`",
                    # a table can also be where a learned embedding begins
                    severity=None if _SAYS_FIXED.search(module.segment(cls)) else Severity.INFO,
                )

    def says(self, entry: dict[str, Any]) -> str:
        return (
            f"`{entry['parameter']}` begins as a table of sines and cosines and is trained: the optimizer changes it with every update. If it is meant to "
            "stay, register it as a buffer, or pass `requires_grad=False`"
        )

    def weighs(self, entry: dict[str, Any]) -> Severity | None:
        """A table can also be where a learned embedding begins."""
        return None if _SAYS_FIXED.search(entry["says"]) else Severity.INFO


def _filled(module: Module) -> Iterator[tuple[ast.stmt, str]]:
    """Where a table goes into `self.<name>`: its construction, `.data.copy_(table)`, `.data = table`."""
    for call in module.calls(*_PARAMETER):
        match call.args, module.parent(call):
            case [table, *_], ast.Assign([ast.Attribute(ast.Name("self"), name)]) as made:
                if _is_table(module, table):
                    yield made, name
    for data in module.all(ast.Attribute) if ".data" in module.source.text else ():
        statement = module.statement(data) if data.attr == "data" else None
        match statement:
            case ast.Assign([ast.Attribute(held, "data")], table) | ast.Expr(
                ast.Call(ast.Attribute(ast.Attribute(held, "data"), "copy_"), [table, *_])
            ):
                filled = of_self(held) if held is data.value else None
                if filled is not None and _is_table(module, table):
                    yield statement, filled


def _is_table(module: Module, node: ast.expr) -> bool:
    """Made by a function that says so, through names and changes of shape or type."""
    made = module.value(node)
    calls = (n for n in below(made, ast.Call))
    names = (n for n in below(made, ast.Name) if n is not made)
    return any(_FIXED_TABLE.search(last_name(c)) for c in calls) or any(
        isinstance(value := module.value(n), ast.Call) and _FIXED_TABLE.search(last_name(value))
        for n in names
    )


def _is_trained(module: Module, cls: ast.ClassDef, name: str) -> bool:
    """A Parameter whose gradient nothing in the class switches off."""
    made = module.attribute_values(cls, name)
    parameters = [
        v for v in made if isinstance(v, ast.Call) and module.resolve(v.func) in _PARAMETER
    ]
    if not parameters or any(
        module.argument(p, 1, "requires_grad") is not None for p in parameters
    ):
        return False
    for node in ast.walk(cls):
        match node:
            case ast.Attribute(held, "requires_grad" | "requires_grad_") if of_self(held) == name:
                return False
    return True
