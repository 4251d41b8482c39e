"""FL703 module-pickled: torch.save(model) instead of its state_dict."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from fallline.finding import Finding, Fix, Severity
from fallline.flow.modules import is_module, looks_like_model
from fallline.rule import Rule
from fallline.syntax import Editor, Module


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
        opened = module.parent(bound[0]) if len(bound) == 1 else None
        made = opened.context_expr if isinstance(opened, ast.withitem) else made
    return isinstance(made, ast.Call) and module.resolve(made.func) in {
        "io.BytesIO",
        "tempfile.TemporaryFile",
    }


def _pickled(module: Module, what: ast.expr) -> ast.expr | None:
    """The expression that is a module as a whole: the argument itself, or a value of the dict that is saved."""
    if _is_model(module, what):
        return what
    made = module.value(what)
    if isinstance(made, ast.Dict):
        return next((v for v in made.values if _is_model(module, v)), None)
    return None


def _is_model(module: Module, node: ast.expr) -> bool:
    if is_module(module, node):
        return True
    if not looks_like_model(node):
        return False
    # only the name says so: anything else it is ever bound to must not contradict
    if isinstance(node, ast.Attribute):
        cls = module.class_(node)
        return not any(
            _not_a_module(v)
            for v in (module.attribute_values(cls, node.attr) if cls is not None else [])
        )
    assert isinstance(node, ast.Name)
    if _used_as_dict(module, node.id):
        return False
    bound = module.bindings(node.id, module.scope(node)) or module.bindings(node.id, None)
    if not bound:
        return False
    for target in bound:
        up = module.parent(target)
        if isinstance(target, ast.Name) and not isinstance(up, ast.Assign | ast.AnnAssign):
            return False
        if (
            isinstance(up, ast.Assign | ast.AnnAssign)
            and up.value is not None
            and (_not_a_module(up.value) or _converts(module, up.value))
        ):
            return False
    return True


def _converts(module: Module, value: ast.expr) -> bool:
    """`new = convert_weights(old)`: a checkpoint made from a checkpoint that was loaded."""
    return isinstance(value, ast.Call) and any(
        isinstance(given := module.value(a), ast.Call)
        and module.resolve(given.func) in {"torch.load", "safetensors.torch.load_file"}
        for a in value.args
    )


def _used_as_dict(module: Module, name: str) -> bool:
    """`model["state_dict"]` somewhere in the file: the name stands for a dict here."""
    return any(
        isinstance(n.value, ast.Name)
        and n.value.id == name
        and isinstance(n.slice, ast.Constant)
        and isinstance(n.slice.value, str)
        for n in module.all(ast.Subscript)
    )


def _not_a_module(value: ast.expr) -> bool:
    """A state_dict, a dict or list of something, or what a load gave back."""
    if isinstance(
        value,
        ast.Dict
        | ast.List
        | ast.DictComp
        | ast.ListComp
        | ast.Constant
        | ast.Subscript
        | ast.Tuple,
    ):
        return True
    name = (
        value.func.attr
        if isinstance(value, ast.Call) and isinstance(value.func, ast.Attribute)
        else ""
    )
    name = (
        value.func.id if isinstance(value, ast.Call) and isinstance(value.func, ast.Name) else name
    )
    return (
        name in {"state_dict", "load", "OrderedDict", "dict", "convert", "items", "get"}
        or "state_dict" in name
    )
