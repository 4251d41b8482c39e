"""FL703 module-pickled: torch.save(model) instead of its state_dict."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from fallline.finding import Finding, Fix, Severity
from fallline.flow.calls import last_name
from fallline.flow.modules import is_module, looks_like_model
from fallline.rule import Rule
from fallline.syntax import Editor, Module

_NOT_MODULES = frozenset("load OrderedDict dict convert items get".split())


class ModulePickled(Rule):
    code = "FL703"
    name = "module-pickled"
    severity = Severity.INFO
    what = "A whole module is pickled with `torch.save(model, ...)` instead of its `state_dict()`."
    why = (
        "The pickle names the class by its import path and holds the module's `__dict__`: move, rename or edit the class and the file no longer loads, or loads into a "
        "model that behaves differently. It also cannot be loaded with `weights_only=True`, the default of `torch.load`."
    )
    instead = "`torch.save(model.state_dict(), path)`, and `model.load_state_dict(torch.load(path))` into a model that the code builds."
    fix_safety = (
        "The file then holds a state_dict: code that loads it has to build the model first."
    )
    references = (
        "https://docs.pytorch.org/docs/stable/notes/serialization.html#saving-and-loading-torch-nn-modules",
    )
    tokens = (b"save",)

    wrong = (
        """\
import torch
from torch import nn

model = nn.Linear(4, 1)
torch.save(model, "model.pt")  # FL703
""",
        """\
import torch


def finish(model, epoch):
    state = {"epoch": epoch, "model": model}
    torch.save(state, "last.pt")  # FL703
""",
        """\
import torch
from torch import nn


class Trainer:
    def __init__(self):
        self.net = nn.Sequential(nn.Linear(4, 4), nn.ReLU()).cuda()

    def save(self, path):
        torch.save(self.net, path)  # FL703
""",
    )
    right = (
        # weights made from weights, whatever the name says
        """\
import torch


def convert_weights(weights):
    return {name.replace("module.", ""): value for name, value in weights.items()}


original_model = torch.load("in.pt")
converted_model = convert_weights(original_model)
torch.save(converted_model, "out.pt")
""",
        """\
import torch
from torch import nn

model = nn.Linear(4, 1)
torch.save(model.state_dict(), "model.pt")
torch.save({"model": model.state_dict(), "epoch": 3}, "last.pt")
""",
        """\
import torch


def save(model, path):
    if hasattr(model, "module"):
        model = model.module
    model = model.state_dict()
    torch.save(model, path)
""",
        """\
import torch


def export(model, path, example):
    traced = torch.jit.trace(model, example)
    torch.jit.save(traced, path)
    features = model(example)
    torch.save(features, "features.pt")
""",
    )

    def check_syntax(self, module: Module) -> Iterator[Finding]:
        for call in module.calls("torch.save"):
            what = Module.argument(call, 0, "obj")
            if what is None or _is_buffer(module, Module.argument(call, 1, "f")):
                continue
            pickled = _pickled(module, what)
            if pickled is not None:
                name = module.segment(pickled)
                yield self.finding(
                    module.location(call),
                    f"torch.save pickles the whole module `{name}`, so the file no longer loads once its class is moved or changed. Save `{name}.state_dict()`.",
                )

    def fix(self, finding: Finding, module: Module) -> Fix | None:
        call = module.call_at(finding.at)
        what = Module.argument(call, 0, "obj") if call is not None else None
        pickled = _pickled(module, what) if what is not None else None
        if pickled is None:
            return None
        edit = Editor(module).replace(pickled, f"{module.segment(pickled)}.state_dict()")
        return Fix("Save the state_dict", (edit,), safe=False)


def _is_buffer(module: Module, where: ast.expr | None) -> bool:
    """Pickled into memory, to be copied or measured: no file has to outlive the class."""
    made = module.value(where) if where is not None else None
    if isinstance(made, ast.Name):
        bound = module.bindings(made.id, module.scope(made))
        match module.parent(bound[0]) if len(bound) == 1 else None:
            case ast.withitem(opened):
                made = opened
    name = module.resolve(made.func) if isinstance(made, ast.Call) else None
    return name in {"io.BytesIO", "tempfile.TemporaryFile"}


def _pickled(module: Module, what: ast.expr) -> ast.expr | None:
    """The expression that is a module as a whole: the argument itself, or a value of the dict that is saved."""
    if _is_model(module, what):
        return what
    match module.value(what):
        case ast.Dict(values=values):
            return next((v for v in values if _is_model(module, v)), None)
    return None


def _is_model(module: Module, node: ast.expr) -> bool:
    if is_module(module, node):
        return True
    if not looks_like_model(node):
        return False
    # only the name says so: anything else it is ever bound to must not contradict
    match node:
        case ast.Attribute(attr=name):
            cls = module.class_(node)
            values = module.attribute_values(cls, name) if cls is not None else []
            return not any(_not_a_module(v) for v in values)
        case ast.Name(name) if not _used_as_dict(module, name):
            bound = module.bindings(name, module.scope(node)) or module.bindings(name, None)
            return bool(bound) and all(_may_bind_model(module, target) for target in bound)
    return False


def _may_bind_model(module: Module, target: ast.AST) -> bool:
    match target, module.parent(target):
        case ast.arg(), _:
            return True
        case _, (ast.Assign(value=value) | ast.AnnAssign(value=value)):
            return value is None or not (_not_a_module(value) or _converts(module, value))
    return False


def _converts(module: Module, value: ast.expr) -> bool:
    """`new = convert_weights(old)`: a checkpoint made from a checkpoint that was loaded."""
    given = [module.value(a) for a in value.args] if isinstance(value, ast.Call) else []
    names = {module.resolve(g.func) for g in given if isinstance(g, ast.Call)}
    return bool(names & {"torch.load", "safetensors.torch.load_file"})


def _used_as_dict(module: Module, name: str) -> bool:
    """`model["state_dict"]` somewhere in the file: the name stands for a dict here."""
    for node in module.all(ast.Subscript):
        match node:
            case ast.Subscript(ast.Name(used), ast.Constant(str())) if used == name:
                return True
    return False


def _not_a_module(value: ast.expr) -> bool:
    """A state_dict, a dict or list of something, or what a load gave back."""
    match value:
        case ast.Dict() | ast.List() | ast.DictComp() | ast.ListComp() | ast.Constant():
            return True
        case ast.Subscript() | ast.Tuple():
            return True
        case ast.Call():
            name = last_name(value)
            return name in _NOT_MODULES or "state_dict" in name
    return False
