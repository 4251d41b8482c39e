"""FL801 modules-in-list: layers kept in a plain list or dict are never registered."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import TypeGuard

from fallline.finding import Finding, Fix, Severity
from fallline.flow.modules import has_state
from fallline.rule import Rule
from fallline.syntax import Editor, Module

# What a ModuleList can do as well as a list, so that swapping one for the other is certain.
_LIST_METHODS = frozenset({"append", "extend", "insert", "pop"})
_DICT_METHODS = frozenset({"items", "keys", "values", "update", "pop", "clear"})
_REGISTRARS = frozenset({"add_module", "register_module"})
# Builtins that only look at what they are given.
_LOOKS = frozenset("len enumerate zip range reversed print list sum iter isinstance".split())

# What a plain container is written as; `list()` and `[a] + [b]` count through `_container`.
Container = ast.List | ast.Tuple | ast.ListComp | ast.Dict | ast.DictComp | ast.BinOp | ast.Call


class ModulesInList(Rule):
    code = "FL801"
    name = "modules-in-list"
    severity = Severity.ERROR
    what = "Layers of an nn.Module are kept in a plain Python list or dict, so the module does not know them."
    why = (
        "`parameters()`, `to(device)`, `state_dict()`, `train()` and `eval()` only reach registered submodules. "
        "Layers in a plain list are not trained by the optimizer, not moved, not saved, and keep their own mode."
    )
    instead = "Keep them in `nn.ModuleList` or `nn.ModuleDict`, which behave like a list and a dict and register what they hold."
    fix_safety = "The container is wrapped in nn.ModuleList / nn.ModuleDict; offered where the class uses it only in ways both support."
    references = ("https://docs.pytorch.org/docs/stable/generated/torch.nn.ModuleList.html",)
    tokens = (b"nn",)

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
    )

    def check_syntax(self, module: Module) -> Iterator[Finding]:
        for statement in [*module.all(ast.Assign), *module.all(ast.AnnAssign)]:
            target, value = _attribute_assigned(statement)
            if target is None or value is None or not isinstance(value, Container | ast.Name):
                continue
            made = module.value(value)
            if not _is_container(made) or not _may_hold_layers(made):
                continue
            cls = module.class_(statement)
            if (
                cls is None
                or not _holds_layers(module, cls, target.attr, value, made)
                or not module.is_module_class(cls)
                or _registers_by_hand(cls)
                or _wrapped_elsewhere(module, cls, target.attr, value)
                or _hidden_on_purpose(module, cls, target.attr, made)
                or _chosen_from(cls, target.attr)
            ):
                continue
            kind = "dict" if _is_dict(made) else "list"
            yield self.finding(
                module.location(statement),
                f"self.{target.attr} is a plain {kind} of layers: they are not registered, so they are neither trained, "
                f"moved, saved nor switched between train and eval. Use nn.{'ModuleDict' if kind == 'dict' else 'ModuleList'}.",
                attribute=target.attr,
                container=kind,
            )

    def fix(self, finding: Finding, module: Module) -> Fix | None:
        statement = Editor(module).statement_at(finding.at.line)
        target, value = _attribute_assigned(statement)
        cls = module.class_(statement) if statement is not None else None
        if target is None or value is None or cls is None:
            return None
        dictionary = finding.evidence.get("container") == "dict"
        wrapper = module.spelling("torch.nn.ModuleDict" if dictionary else "torch.nn.ModuleList")
        if wrapper is None or not _used_plainly(
            module, cls, target.attr, _DICT_METHODS if dictionary else _LIST_METHODS
        ):
            return None
        if dictionary and not _string_keys(module, module.value(value)):
            return None
        empty = _is_container(value) and not _items(value)
        text = f"{wrapper}()" if empty else f"{wrapper}({module.segment(value)})"
        return Fix(f"Register the layers: {wrapper}", (Editor(module).replace(value, text),))


def _attribute_assigned(statement: ast.AST | None) -> tuple[ast.Attribute | None, ast.expr | None]:
    """`self.x = value`."""
    if isinstance(statement, ast.Assign) and len(statement.targets) == 1:
        target = statement.targets[0]
    elif isinstance(statement, ast.AnnAssign):
        target = statement.target
    else:
        return None, None
    if (
        isinstance(target, ast.Attribute)
        and isinstance(target.value, ast.Name)
        and target.value.id == "self"
    ):
        return target, statement.value
    return None, None


def _is_dict(made: ast.expr) -> bool:
    return isinstance(made, ast.Dict | ast.DictComp) or (
        isinstance(made, ast.Call) and isinstance(made.func, ast.Name) and made.func.id == "dict"
    )


def _is_container(made: ast.expr) -> TypeGuard[Container]:
    """A list, tuple or dict as Python writes them: displays, comprehensions, `list()`, `[a] + [b]`."""
    if isinstance(made, ast.BinOp):
        return (
            isinstance(made.op, ast.Add) and _is_container(made.left) and _is_container(made.right)
        )
    if isinstance(made, ast.Call):
        return (
            isinstance(made.func, ast.Name)
            and made.func.id in {"list", "dict"}
            and not made.args
            and not made.keywords
        )
    return isinstance(made, ast.List | ast.Tuple | ast.ListComp | ast.Dict | ast.DictComp)


def _may_hold_layers(made: Container) -> bool:
    """Empty, or with at least one element that is made or named on the spot."""
    items = _items(made)
    return not items or any(isinstance(item, ast.Call | ast.Name) for item in items)


def _is_self(node: ast.AST, name: str) -> bool:
    return (
        isinstance(node, ast.Attribute)
        and node.attr == name
        and isinstance(node.value, ast.Name)
        and node.value.id == "self"
    )


def _registers_by_hand(cls: ast.ClassDef) -> bool:
    """add_module, setattr(self, ...), self._modules, or a `parameters` of its own: the author takes care of it."""
    for node in ast.walk(cls):
        if isinstance(node, ast.Call):
            if isinstance(node.func, ast.Attribute) and node.func.attr in _REGISTRARS:
                return True
            if isinstance(node.func, ast.Name) and node.func.id == "setattr":
                return True
        if isinstance(node, ast.Attribute) and node.attr in {"_modules", "__dict__", "__setattr__"}:
            return True
        if isinstance(node, ast.FunctionDef) and node.name in {
            "parameters",
            "named_parameters",
            "__setattr__",
        }:
            return True
    return False


def _wrapped_elsewhere(module: Module, cls: ast.ClassDef, name: str, value: ast.expr) -> bool:
    """The attribute, or the local list behind it, goes into ModuleList, Sequential or another call that may register it."""
    for call in ast.walk(cls):
        if not isinstance(call, ast.Call):
            continue
        callee = module.resolve(call.func)
        if isinstance(call.func, ast.Name) and callee is None and call.func.id in _LOOKS:
            continue
        for argument in [*call.args, *(k.value for k in call.keywords)]:
            inner = argument.value if isinstance(argument, ast.Starred) else argument
            inner = _walked(inner)
            if _is_self(inner, name) or (
                isinstance(value, ast.Name) and isinstance(inner, ast.Name) and inner.id == value.id
            ):
                return True
    return any(
        not _is_container(module.value(v)) for v in module.attribute_values(cls, name)
    ) or _handed_on(cls, value)


def _handed_on(cls: ast.ClassDef, value: ast.expr) -> bool:
    """`for layer in layers: sequence.append(layer)`: each layer of the local list goes on to where it may be registered."""
    if not isinstance(value, ast.Name):
        return False
    for loop in (n for n in ast.walk(cls) if isinstance(n, ast.For)):
        if not any(isinstance(n, ast.Name) and n.id == value.id for n in ast.walk(loop.iter)):
            continue
        names = {n.id for n in ast.walk(loop.target) if isinstance(n, ast.Name)}
        if any(
            isinstance(argument, ast.Name) and argument.id in names
            for call in ast.walk(loop)
            if isinstance(call, ast.Call)
            for argument in call.args
        ):
            return True
    return False


def _walked(argument: ast.expr) -> ast.expr:
    """The container behind `list(x.values())`, `x.values()`, `list(x)`."""
    if isinstance(argument, ast.Call):
        if isinstance(argument.func, ast.Name) and argument.func.id in {"list", "tuple"}:
            return _walked(argument.args[0]) if argument.args else argument
        if isinstance(argument.func, ast.Attribute) and argument.func.attr == "values":
            return argument.func.value
    return argument


def _chosen_from(cls: ast.ClassDef, name: str) -> bool:
    """`self.net = self.choices[key]`, there or in the method that is asked for it: the one that is used is registered."""
    methods = {m.name: m for m in cls.body if isinstance(m, ast.FunctionDef)}
    for node in ast.walk(cls):
        target, value = _attribute_assigned(node)
        if target is None:
            continue
        asked = (
            methods.get(value.func.attr)
            if isinstance(value, ast.Call) and isinstance(value.func, ast.Attribute)
            else value
        )
        if asked is not None and any(
            isinstance(n, ast.Subscript) and _is_self(n.value, name) for n in ast.walk(asked)
        ):
            return True
    return False


def _holds_layers(
    module: Module, cls: ast.ClassDef, name: str, value: ast.expr, made: Container
) -> bool:
    return any(_is_layer(module, item) for item in _items(made)) or any(
        _is_layer(module, item) for item in _added(module, cls, name, value)
    )


def _items(made: Container) -> list[ast.expr]:
    if isinstance(made, ast.List | ast.Tuple):
        return made.elts
    if isinstance(made, ast.ListComp):
        return [made.elt]
    if isinstance(made, ast.BinOp):
        return [
            item for side in (made.left, made.right) if _is_container(side) for item in _items(side)
        ]
    if isinstance(made, ast.Call):
        return []
    return made.values if isinstance(made, ast.Dict) else [made.value]


def _added(module: Module, cls: ast.ClassDef, name: str, value: ast.expr) -> Iterator[ast.expr]:
    """What is put into the container later: append, insert, extend, +=, and assignment to a key."""

    def mine(node: ast.expr) -> bool:
        return _is_self(node, name) or (
            isinstance(value, ast.Name) and isinstance(node, ast.Name) and node.id == value.id
        )

    for node in ast.walk(cls):
        if (
            isinstance(node, ast.Call)
            and isinstance(node.func, ast.Attribute)
            and mine(node.func.value)
        ):
            if node.func.attr in {"append", "insert"} and node.args:
                yield node.args[-1]
            elif (
                node.func.attr in {"extend", "update"} and node.args and _is_container(node.args[0])
            ):
                yield from _items(node.args[0])
        elif (
            isinstance(node, ast.AugAssign)
            and mine(node.target)
            and isinstance(node.value, ast.List | ast.ListComp)
        ):
            yield from _items(node.value)
        elif (
            isinstance(node, ast.Assign)
            and isinstance(node.targets[0], ast.Subscript)
            and mine(node.targets[0].value)
        ):
            yield node.value


def _is_layer(module: Module, item: ast.expr) -> bool:
    """A layer made on the spot, or held by a local name that no attribute registers."""
    if isinstance(item, ast.Name):
        made = module.value(item)
        return made is not item and has_state(module, made) and not _registered_name(module, item)
    return has_state(module, item)


def _registered_name(module: Module, item: ast.Name) -> bool:
    """`self.x = layer` next to `self.layers.append(layer)` registers it."""
    cls = module.class_(item)
    return cls is not None and any(
        isinstance(n, ast.Assign)
        and isinstance(n.value, ast.Name)
        and n.value.id == item.id
        and any(isinstance(t, ast.Attribute) for t in n.targets)
        for n in ast.walk(cls)
    )


def _hidden_on_purpose(module: Module, cls: ast.ClassDef, name: str, made: Container) -> bool:
    """`self.teacher = [net]` read as `self.teacher[0]`: the old trick to keep a module out of parameters()."""
    if not isinstance(made, ast.List | ast.Tuple) or len(made.elts) != 1:
        return False
    uses = [
        n
        for n in ast.walk(cls)
        if _is_self(n, name) and isinstance(n, ast.Attribute) and isinstance(n.ctx, ast.Load)
    ]
    return all(
        isinstance(up := module.parent(n), ast.Subscript) and module.constant(up.slice) == 0
        for n in uses
    )


def _used_plainly(module: Module, cls: ast.ClassDef, name: str, methods: frozenset[str]) -> bool:
    for node in ast.walk(cls):
        if not _is_self(node, name):
            continue
        up = module.parent(node)
        if isinstance(up, ast.Attribute) and up.attr not in methods:
            return False
        if isinstance(up, ast.BinOp | ast.Compare | ast.Return):
            return False
    return True


def _string_keys(module: Module, made: ast.expr) -> bool:
    if isinstance(made, ast.DictComp):
        return isinstance(made.key, ast.JoinedStr) or isinstance(module.constant(made.key), str)
    return (
        isinstance(made, ast.Dict)
        and bool(made.keys)
        and all(k is not None and isinstance(module.constant(k), str) for k in made.keys)
    )
