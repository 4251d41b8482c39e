"""Which operation made a value: through names, shape changes, and the last layer of a model in this file or another.

`criterion(model(x), y)` is right or wrong by the last line of the model's forward, which may be in another file.
"""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass

from fallline.flow.calls import last_name, of_self, receiver, returned
from fallline.flow.collected import listed
from fallline.flow.values import values_of
from fallline.syntax import Module
from fallline.syntax.nodes import below, is_name, methods_of
from fallline.syntax.once import once

__all__ = [
    "SHAPE_OPS",
    "Made",
    "called_function",
    "class_of",
    "made_by",
    "method_of",
    "output_of",
    "own_similarity",
]

_DEEPEST = 12
_STARS = 4
# Methods and functions that change a tensor's shape, device or dtype, never its values.
SHAPE_OPS = frozenset(
    "view reshape squeeze unsqueeze transpose permute flatten contiguous float double half to cuda cpu type type_as view_as reshape_as"
    " expand expand_as clone t movedim swapaxes unflatten detach bfloat16 requires_grad_ index_select gather masked_select repeat"
    " repeat_interleave diagonal narrow select chunk split roll flip take_along_dim".split()
)
_TRANSPARENT_LAYERS = frozenset("Dropout Dropout1d Dropout2d Identity Flatten Unflatten".split())
_OPS_OF_LAYERS = {
    "Softmax": "softmax",
    "Softmax2d": "softmax",
    "LogSoftmax": "log_softmax",
    "LogSigmoid": "logsigmoid",
}


@dataclass(frozen=True, slots=True)
class Made:
    """The operation (`softmax`, `linear`, ...) that made a value, its call, and the file it is in."""

    op: str
    call: ast.Call
    module: Module

    @property
    def line(self) -> int:
        return self.call.lineno

    @property
    def of(self) -> ast.expr | None:
        """What the operation was given."""
        return receiver(self.module, self.call)


def made_by(module: Module, node: ast.expr | ast.arg, depth: int = 0) -> Made | None:
    """The operation whose result this is; None where it is not known."""
    if depth > _DEEPEST:
        return None
    values = values_of(module)
    match node if isinstance(node, ast.arg) else values.origin(node):
        case ast.arg() as argument:
            return _agreed([made_by(module, p, depth + 1) for p in values.passed(argument)])
        case ast.Name() as name:
            part = values.unpacked(name)
            return _of_call(module, part[0], depth, part[1]) if part is not None else None
        case ast.Subscript(value, ast.Constant(int() as place)) if isinstance(
            whole := values.origin(value), ast.Call
        ):
            return _of_call(module, whole, depth, place)
        case ast.Subscript(value) | ast.Attribute(value, "T" | "mT" | "data"):
            return made_by(module, value, depth + 1)
        case ast.Call() as call:
            return _of_call(module, call, depth)
    return None


def _of_call(module: Module, call: ast.Call, depth: int, element: int | None = None) -> Made | None:
    name = module.resolve(call.func)
    if name is not None and name.startswith("torch.") and not name.startswith("torch.nn.modules"):
        last = name.rpartition(".")[2]
        if last in SHAPE_OPS and call.args:
            return made_by(module, call.args[0], depth + 1)
        return Made(last, call, module) if last[:1].islower() else None
    if isinstance(call.func, ast.Attribute):
        method = method_of(module, call.func) if name is None else None
        if method is not None:
            return _of_function(*method, depth, element)
        # `self.head(x)` calls something kept in an object; `x.softmax(1)` is a method of a tensor
        if of_self(call.func) is None:
            if call.func.attr in SHAPE_OPS:
                return made_by(module, call.func.value, depth + 1)
            return Made(call.func.attr, call, module) if name is None else None
    if isinstance(call.func, ast.Name):
        function = module.functions.get(call.func.id)
        if isinstance(function, ast.FunctionDef):
            return _of_function(module, function, depth, element)
    return output_of(module, call.func, call, depth, element)


def method_of(module: Module, func: ast.Attribute) -> tuple[Module, ast.FunctionDef] | None:
    """The method of a class of the project that `network.act(x)` or `self.act(x)` calls."""
    owner = func.value
    home: tuple[Module, ast.ClassDef] | None = None
    if is_name(owner, "self"):
        cls = module.class_(func)
        home = (module, cls) if cls is not None else None
    elif isinstance(owner, ast.Name | ast.Attribute):
        home = _class_called(module, owner)
    for statement in home[1].body if home is not None else ():
        match statement:
            case ast.FunctionDef(name) if name == func.attr and home is not None:
                return home[0], statement
    return None


def own_similarity(module: Module, logits: ast.expr) -> bool:
    """`x @ x.T`, also divided by a temperature: the diagonal is the largest of its row, its softmax never small."""

    def scaled(made: ast.expr) -> ast.expr | None:
        match made:
            case ast.BinOp(left, ast.Div() | ast.Mult()):
                return left
        return None

    match values_of(module).through(logits, scaled):
        case ast.BinOp(left, ast.MatMult(), right):
            pass
        case ast.Call(args=[left, right]) as call if last_name(call) in {"matmul", "mm"}:
            pass
        case _:
            return False
    return module.segment(right).startswith(module.segment(left) + ".")


def output_of(
    module: Module, callee: ast.expr, call: ast.Call, depth: int = 0, element: int | None = None
) -> Made | None:
    """The operation that makes what a model returns when it is called."""
    if depth > _DEEPEST:
        return None
    if is_name(callee, "self"):
        home = module.class_(callee)  # self(x) in a LightningModule
        return _of_forward(module, home, depth, element) if home is not None else None
    made = values_of(module).constructed(callee)
    if made is None:
        cls = presumed_class(module, callee)
        return _of_forward(*cls, depth, element) if cls is not None else None
    name = module.resolve(made.func)
    if name is not None and name.startswith("torch.nn."):
        return _of_layer(module, made, name.rpartition(".")[2], call, depth)
    if name is not None and name.startswith("torchvision.models."):
        return _of_zoo(module, made, callee, call, depth)
    cls = class_of(module, made.func, name)
    if cls is not None:
        return _of_forward(cls[0], cls[1], depth, element)
    return None


_HEADS = frozenset({"fc", "classifier", "head", "heads"})
_OF_CLASSES = re.compile(
    r"torchvision\.models\.(\w+\.)?(?!\w*(rcnn|retinanet|ssd|fcos|fcn|deeplab|lraspp|raft|inception|googlenet))[a-z]\w*$"
)


def _of_zoo(
    module: Module, made: ast.Call, callee: ast.expr, call: ast.Call, depth: int
) -> Made | None:
    """A classifier of torchvision ends in a linear layer, or in what `model.fc = ...` puts there."""
    if not _OF_CLASSES.match(module.resolve(made.func) or ""):
        return None
    for statement in module.all(ast.Assign):
        match statement:
            case ast.Assign([ast.Attribute(of, name)], head) if name in _HEADS:
                pass
            case ast.Assign([ast.Subscript(ast.Attribute(of, name))], head) if name in _HEADS:
                pass
            case _:
                continue
        if values_of(module).constructed(of) is made:
            return output_of(module, head, call, depth + 1)
    return Made("linear", made, module)


def _of_layer(
    module: Module, made: ast.Call, layer: str, call: ast.Call, depth: int
) -> Made | None:
    if layer != "Sequential":
        return Made(_OPS_OF_LAYERS.get(layer, layer.lower()), call, module)
    for last in reversed(_children(module, made)):
        if last is None:
            return None
        inner = values_of(module).built(last)
        if not isinstance(inner, ast.Call):
            return output_of(module, last, call, depth + 1)
        if (module.resolve(inner.func) or "").rpartition(".")[2] in _TRANSPARENT_LAYERS:
            continue
        found = output_of(module, last, call, depth + 1)
        here = found is not None and found.call is call
        return Made(found.op, inner, module) if found is not None and here else found
    return None


def _children(module: Module, made: ast.Call) -> list[ast.expr | None]:
    """The layers of a Sequential, given one by one, as a list or as an OrderedDict of pairs; None where one cannot be seen."""
    match made.args:
        case [ast.Call(args=[ast.List(pairs), *_]) as given] if last_name(given) == "OrderedDict":
            return [
                p.elts[1] if isinstance(p, ast.Tuple) and len(p.elts) == 2 else None for p in pairs
            ]
        case [ast.Call() as given] if last_name(given) == "OrderedDict":
            return [None]
    return listed(module, made.args)


def called_function(module: Module, call: ast.Call) -> tuple[Module, ast.FunctionDef] | None:
    """The function, the method, or the forward of the model that a call runs."""
    match call.func:
        case ast.Name(name) if isinstance(found := module.functions.get(name), ast.FunctionDef):
            return module, found
        case ast.Attribute() as func if (method := method_of(module, func)) is not None:
            return method
        case ast.Name("self") as this:
            cls = module.class_(this)
            home = (module, cls) if cls is not None else None
        case func:
            home = _class_called(module, func)
    for statement in home[1].body if home is not None else ():
        match statement:
            case ast.FunctionDef("forward") if home is not None:
                return home[0], statement
    return None


def _class_called(module: Module, callee: ast.expr) -> tuple[Module, ast.ClassDef] | None:
    """The class of the project whose instance this is."""
    made = values_of(module).constructed(callee)
    if made is None:
        return presumed_class(module, callee)
    return class_of(module, made.func, module.resolve(made.func))


def class_of(
    module: Module, func: ast.expr, name: str | None
) -> tuple[Module, ast.ClassDef] | None:
    """The class of the project that is called so, in this file or another; `name`: as it resolves."""
    if isinstance(func, ast.Name) and func.id in module.classes:
        return module, module.classes[func.id]
    if module.project is None:
        return None
    if name is not None:
        return module.project.find_class(name, module)
    if isinstance(func, ast.Name) and func.id[:1].isupper() and not module.bindings(func.id, None):
        # a package that re-exports everything would have all its files read
        for star in module.star_imports if len(module.star_imports) <= _STARS else ():
            found = module.project.find_class(f"{star}.{func.id}", module)
            if found is not None:
                return found
    return None


_ONLY_ONE = re.compile(r"(model|net|network)")
_NOT_A_MODEL = re.compile(r"Loss|Criterion|Metric|Penalty|Mock|Dummy|Dataset")


def presumed_class(module: Module, callee: ast.expr) -> tuple[Module, ast.ClassDef] | None:
    """The model of this file that is called so, where nothing in view builds what is called: `critic` is a Critic, `model` the only one there is."""
    origin = values_of(module).built(callee)
    if not isinstance(origin, ast.Name | ast.Attribute) and origin is not callee:
        return None
    name = last_name(callee).replace("_", "").lower()
    found = [c for c in _models(module) if c.name.lower() == name]
    if not found and _ONLY_ONE.fullmatch(name):
        found = _models(module)
    return (module, found[0]) if len(found) == 1 else None


@once
def _models(module: Module) -> list[ast.ClassDef]:
    """The modules of this file that are no part of others, and no losses."""
    classes = [c for c in module.classes.values() if module.is_module_class(c)]
    parts = {last_name(call) for c in classes for call in below(c, ast.Call)}
    bases = {last_name(b) for c in classes for b in c.bases}
    return [c for c in classes if c.name not in parts | bases and not _NOT_A_MODEL.search(c.name)]


def _of_forward(module: Module, cls: ast.ClassDef, depth: int, element: int | None) -> Made | None:
    forward = next((s for s in methods_of(cls) if s.name == "forward"), None)
    return _of_function(module, forward, depth, element) if forward is not None else None


def _of_function(
    module: Module, function: ast.FunctionDef, depth: int, element: int | None
) -> Made | None:
    """The operation that makes what a function returns, or one element of the tuple that it returns."""
    if depth > _DEEPEST:
        return None
    picked = []
    for value in returned(module, function):
        whole = values_of(module).origin(value)
        if isinstance(whole, ast.Tuple):
            if element is None or not 0 <= element < len(whole.elts):
                return None
            whole = whole.elts[element]
        picked.append(made_by(module, whole, depth + 1))
    return _agreed(picked)


def _agreed(found: list[Made | None]) -> Made | None:
    """The one answer, where all paths give the same."""
    first = found[0] if found else None
    agree = first is not None and all(f is not None and f.op == first.op for f in found)
    return first if agree else None
