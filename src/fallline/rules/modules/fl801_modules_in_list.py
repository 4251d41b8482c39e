"""FL801 modules-in-list: layers kept in a plain list or dict are never registered."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from fallline.finding import Finding, Fix, Severity
from fallline.flow.containers import Kept
from fallline.flow.unregistered import kept_layers
from fallline.rule import Rule
from fallline.syntax import Editor, Module

# What a ModuleList can do as well as a list, so that swapping one for the other is certain.
_LIST_METHODS = frozenset({"append", "extend", "insert", "pop"})
_DICT_METHODS = frozenset({"items", "keys", "values", "update", "pop", "clear"})


class ModulesInList(Rule):
    code = "FL801"
    name = "modules-in-list"
    severity = Severity.ERROR
    what = "An nn.Module keeps layers in a plain Python list or dict, which does not register them."
    why = (
        "`parameters()`, `to(device)`, `state_dict()`, `train()` and `eval()` only reach registered submodules. "
        "Layers in a plain list are not trained by the optimizer, not moved, not saved, and keep their own mode."
    )
    instead = "Keep them in `nn.ModuleList` or `nn.ModuleDict`, which behave like a list and a dict and register what they hold."
    fix_safety = "The container is wrapped in nn.ModuleList / nn.ModuleDict; offered where the class uses it only in ways both support."
    references = ("https://docs.pytorch.org/docs/stable/generated/torch.nn.ModuleList.html",)
    tokens = (b"nn", b"Policy", b"Module", b"Network")

    wrong = (
        """\
import torch.nn as nn


class Net(nn.Module):
    def __init__(self, depth=3):
        super().__init__()
        self.layers = [nn.Linear(8, 8) for _ in range(depth)]  # FL801
        self.head = nn.Linear(8, 1)

    def forward(self, x):
        for layer in self.layers:
            x = layer(x).relu()
        return self.head(x)
""",
        """\
import torch
from torch import nn


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(3, 3, 3, padding=1)

    def forward(self, x):
        return x + self.conv(x)


class Net(nn.Module):
    def __init__(self, depth):
        super().__init__()
        self.blocks = []  # FL801
        for _ in range(depth):
            self.blocks.append(Block())

    def forward(self, x):
        for block in self.blocks:
            x = block(x)
        return torch.relu(x)
""",
        """\
from torch import nn


class Heads(nn.Module):
    def __init__(self):
        super().__init__()
        self.heads = {"age": nn.Linear(16, 1), "name": nn.Linear(16, 100)}  # FL801

    def forward(self, x, task):
        return self.heads[task](x)
""",
        """\
from torch import nn


class Net(nn.Module):
    def __init__(self, sizes):
        super().__init__()
        layers = []
        for a, b in zip(sizes, sizes[1:]):
            layers.append(nn.Linear(a, b))
        self.layers = layers  # FL801

    def forward(self, x):
        for layer in self.layers:
            x = layer(x)
        return x
""",
        """\
from typing import List

import torch
from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 2)

    def forward(self, x):
        return self.layer(x)


class Ensemble(nn.Module):
    def __init__(self, nets: List[Net]):
        super().__init__()
        self.nets = nets  # FL801

    def forward(self, x):
        return torch.stack([net(x) for net in self.nets]).mean(dim=0)
""",
        """\
from torch import nn


class Policies(nn.Module):
    def __init__(self, names, policies: list[nn.Module]):
        super().__init__()
        self.policies = dict(zip(names, policies))  # FL801

    def forward(self, name, x):
        return self.policies[name](x)
""",
    )
    right = (
        """\
import torch.nn as nn


class Net(nn.Module):
    def __init__(self, depth=3):
        super().__init__()
        layers = [nn.Linear(8, 8) for _ in range(depth)]
        layers.append(nn.Linear(8, 1))
        self.body = nn.Sequential(*layers)
        self.heads = nn.ModuleDict({"a": nn.Linear(1, 1)})

    def forward(self, x):
        return self.heads["a"](self.body(x))
""",
        """\
import torch.nn as nn


class Net(nn.Module):
    def __init__(self, depth=3):
        super().__init__()
        self.layers = []
        for i in range(depth):
            layer = nn.Linear(8, 8)
            self.add_module(f"layer{i}", layer)
            self.layers.append(layer)

    def forward(self, x):
        for layer in self.layers:
            x = layer(x)
        return x
""",
        """\
import torch.nn as nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = [nn.Linear(8, 8), nn.Linear(8, 8)]
        self.layers = nn.ModuleList(self.layers)
        self.a = nn.Linear(8, 8)
        self.order = [self.a, self.a]
        self.losses = [nn.L1Loss(), nn.MSELoss()]
        self.activations = {"relu": nn.ReLU(), "tanh": nn.Tanh()}
        self.teacher = [nn.Linear(8, 8)]  # hidden on purpose: its weights are not ours

    def forward(self, x):
        return self.teacher[0](x)
""",
        # registered as a list of the dict's values; and a choice of which one is taken
        """\
import torch.nn as nn


class PoseNet(nn.Module):
    def __init__(self, base):
        super().__init__()
        self.convs = {}
        self.convs[0] = nn.Conv2d(3, 8, 3)
        self.convs[1] = nn.Conv2d(8, 8, 3)
        self.net = nn.ModuleList(list(self.convs.values()))
        self.choices = {"small": nn.Linear(8, 2), "large": nn.Linear(8, 2, bias=False)}
        self.head = self.choose(base)

    def choose(self, name):
        head = self.choices[name]
        return head
""",
        """\
import torch.nn as nn


class Trainer:
    def __init__(self):
        self.models = [nn.Linear(2, 2), nn.Linear(2, 2)]
""",
        """\
from torch import nn


class Policies(nn.Module):
    def __init__(self, names, policies: list[nn.Module]):
        super().__init__()
        self.policies = dict(zip(names, policies))

    def train(self, mode=True):
        for policy in self.policies.values():
            policy.train(mode)
        return super().train(mode)
""",
    )

    def check_syntax(self, module: Module) -> Iterator[Finding]:
        for kept in kept_layers(module):
            kind, better = ("dict", "ModuleDict") if kept.is_dict else ("list", "ModuleList")
            yield self.finding(
                module.location(kept.statement),
                f"`self.{kept.name}` is a plain {kind} of layers, so nn.Module does not register them: they are not trained, moved to the "
                f"device, saved or switched to eval. Use `nn.{better}`",
                # layers that nothing but the constructor touches may only be there to initialise others
                severity=_gravity(kept),
                presuming="what makes them returns layers with parameters"
                if kept.presumed
                else None,
                attribute=kept.name,
                container=kind,
            )

    def fix(self, finding: Finding, module: Module) -> Fix | None:
        kept = next(
            (k for k in kept_layers(module) if module.location(k.statement) == finding.at), None
        )
        if kept is None or kept.value is not getattr(kept.statement, "value", None):
            return None
        wrapper = module.spelling("torch.nn.ModuleDict" if kept.is_dict else "torch.nn.ModuleList")
        if wrapper is None or not _used_plainly(kept) or (kept.is_dict and not _string_keys(kept)):
            return None
        text = f"{wrapper}({'' if kept.is_empty else module.segment(kept.value)})"
        return Fix(f"Register the layers: {wrapper}", (Editor(module).replace(kept.value, text),))


def _gravity(kept: Kept) -> Severity | None:
    if kept.presumed or kept.is_evaluated_by_hand():
        return Severity.INFO
    if kept.used_later():
        return Severity.WARNING if kept.declared else None
    return Severity.WARNING if kept.read_by_others() else Severity.INFO


def _used_plainly(kept: Kept) -> bool:
    methods = _DICT_METHODS if kept.is_dict else _LIST_METHODS
    for _, up in kept.uses():
        match up:
            case ast.Attribute(attr=method) if method not in methods:
                return False
            case ast.BinOp() | ast.Compare() | ast.Return():
                return False
    return True


def _string_keys(kept: Kept) -> bool:
    """A ModuleDict takes no other keys."""
    match kept.made:
        case ast.DictComp(ast.JoinedStr()):
            return True
        case ast.DictComp(key):
            keys: list[ast.expr | None] = [key]
        case ast.Dict(keys):
            pass
        case _:
            return False
    return bool(keys) and all(k and isinstance(kept.module.constant(k), str) for k in keys)
