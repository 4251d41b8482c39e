"""FL811: one layer fills several places of a list."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from typing import Any

from fallline.finding import Finding, Fix, Severity
from fallline.flow.calls import last_name, same
from fallline.flow.modules import annotates_module, construction, has_state
from fallline.rules._observed import Observed
from fallline.syntax import Editor, Module
from fallline.syntax.nodes import below, is_name

__all__ = ["ModuleShared"]

_SHARES = re.compile(r"share|tied|tie_|reuse", re.IGNORECASE)


_SHARED_ON_PURPOSE = re.compile(
    r"rotary|rope|pos|emb|norm|shared|tied|act|drop|teacher", re.IGNORECASE
)


class ModuleShared(Observed):
    code = "FL811"
    name = "module-shared"
    severity = Severity.WARNING
    what = "Finds a list that is filled with one and the same layer, such as `nn.ModuleList([nn.Linear(8, 8)] * 4)`."
    why = (
        "`[layer] * n` repeats the object, not the constructor. All places share one set of weights: a stack of 12 blocks has the parameters of "
        "one, and each update is the sum of 12 gradients. It trains without an error, and much worse."
    )
    instead = "Build a layer for each place:\n\n```python\nnn.ModuleList([nn.Linear(8, 8) for _ in range(4)])\n```"
    fix_safety = (
        "`[layer] * n` becomes a comprehension, so the model has more parameters than before; "
        "checkpoints of the shared layer no longer fit."
    )
    references = ("https://docs.pytorch.org/docs/stable/generated/torch.nn.ModuleList.html",)
    tokens = (b"nn",)

    def check_syntax(self, module: Module) -> Iterator[Finding]:
        for node, layer in _repeated(module):
            shared = _has_weights(module, layer) or _given(module, layer)
            if shared and not _asked_for(module, node):
                yield self.finding(
                    module.location(node),
                    "The same layer object fills every place of this list, so all of them share one set of weights. "
                    "Build a new layer for each: `[... for _ in range(n)]`.",
                )

    def counts(self, entry: dict[str, Any]) -> bool:
        return not _SHARED_ON_PURPOSE.search(f"{entry['called']} {entry['named']}")

    def says(self, entry: dict[str, Any]) -> str:
        held = f"the `{entry['called']}` of" if entry["called"] else ""
        return (
            f"One {entry['layer']} is {held or 'at'} all {entry['places']} places of this list, and the optimizer trains it: they share one set of weights. "
            "Build a new layer for each place, or copy it with copy.deepcopy()"
        )

    def fix(self, finding: Finding, module: Module) -> Fix | None:
        for node, layer in _repeated(module):
            if module.location(node) == finding.at and isinstance(layer, ast.Call):
                match node:
                    case ast.BinOp(ast.List(), ast.Mult(), count) | ast.BinOp(count, _, ast.List()):
                        text = f"[{module.segment(layer)} for _ in range({module.segment(count)})]"
                        edit = Editor(module).replace(node, text)
                        return Fix("Build a layer for each place", (edit,), safe=False)
        return None

    wrong = (
        """\
from torch import nn


class Net(nn.Module):
    def __init__(self, depth):
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(8, 8)] * depth)  # FL811

    def forward(self, x):
        for layer in self.layers:
            x = layer(x).relu()
        return x
""",
        """\
from torch import nn


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(8, 8)

    def forward(self, x):
        return x + self.linear(x).relu()


block = Block()
model = nn.Sequential(*[block for _ in range(4)])  # FL811
""",
        """\
import torch
from torch import nn

layers = 6 * [nn.TransformerEncoderLayer(64, 4)]  # FL811
encoder = nn.Sequential(*layers)
""",
        """\
from torch import nn


class Block(nn.Module):
    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, x):
        return x + self.model(x)


class Cascade(nn.Module):
    def __init__(self, refine: nn.Module, depth=4):
        super().__init__()
        self.blocks = nn.ModuleList([Block(refine) for _ in range(depth)])  # FL811
""",
    )
    right = (
        """\
from torch import nn


class Net(nn.Module):
    def __init__(self, depth):
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(8, 8) for _ in range(depth)])
        self.activations = nn.ModuleList([nn.Sequential(nn.ReLU())] * depth)
        self.dropouts = nn.ModuleList([nn.Dropout(0.1)] * depth)
        self.sizes = [8] * depth

    def forward(self, x):
        for layer, activation in zip(self.layers, self.activations):
            x = activation(layer(x))
        return x
""",
        """\
import copy
from torch import nn

head = nn.Linear(8, 2)
share_heads = True
if share_heads:
    heads = nn.ModuleList([head] * 3)
block = nn.Linear(8, 8)
blocks = nn.ModuleList([copy.deepcopy(block) for _ in range(4)])
""",
    )


def _repeated(module: Module) -> Iterator[tuple[ast.expr, ast.expr]]:
    """Lists that hold one object several times, each with that object."""
    for product in module.all(ast.BinOp):
        match product:
            case ast.BinOp(ast.List([layer]), ast.Mult(), count) | ast.BinOp(
                count, ast.Mult(), ast.List([layer])
            ) if module.constant(count) != 1:
                yield product, layer
    for comprehension in module.all(ast.ListComp):
        match comprehension:
            case ast.ListComp(ast.Name(layer_name) as layer, [ast.comprehension(target=target)]):
                drawn = {n.id for n in below(target, ast.Name)}
                if layer_name not in drawn:
                    yield comprehension, layer
            case ast.ListComp(ast.Call() as block, [ast.comprehension(iter=over)]):
                if last_name(over) == "range" and construction(module, block) is not None:
                    yield from ((comprehension, a) for a in block.args if _given(module, a))


def _given(module: Module, node: ast.expr) -> bool:
    """A module that the constructor was given, and hands to every block; position codes and the like are shared on purpose."""
    match node:
        case ast.Name(name) if not _SHARED_ON_PURPOSE.search(name):
            match module.bindings(name, module.function(node)):
                case [ast.arg(annotation=ast.expr() as kind)]:
                    return annotates_module(module, kind) and not _builds(module, node)
    return False


def _builds(module: Module, name: ast.Name) -> bool:
    """`conv(n_feats, n_feats, 3)` in the constructor: whatever its annotation says, it makes layers."""
    function = module.function(name)
    calls = (n for n in below(function or name, ast.Call))
    return any(is_name(c.func, name.id) for c in calls)


def _has_weights(module: Module, layer: ast.expr) -> bool:
    """An nn.Module that holds parameters; sharing an activation function or a dropout does no harm."""
    if isinstance(layer, ast.Name) and _SHARED_ON_PURPOSE.search(layer.id):
        return False
    made = module.value(layer)
    return has_state(module, made) and "Dropout" not in last_name(made)


def _asked_for(module: Module, node: ast.expr) -> bool:
    """A test around it asks whether weights are shared: `if config.share_head:`."""
    ifs = [up for up in module.parents(node) if isinstance(up, ast.If)]
    if any(_SHARES.search(module.segment(up.test)) for up in ifs):
        return True
    return any(_built_apart(module, up, module.statement(node)) for up in ifs)


def _built_apart(module: Module, choice: ast.If, shared: ast.stmt) -> bool:
    """The other branch gives the same name a layer of its own in every place: here, sharing is what was chosen."""
    branches = (choice.body, choice.orelse)
    for other in (b for b in branches if shared not in b):
        for statement in other:
            match statement, shared:
                case ast.Assign([there], made), ast.Assign([here]) if same(there, here):
                    return bool(below(made, ast.ListComp))
    return False
