"""Which operation made a value: through names, shape changes, and the last layer of a model in this file or another.

`criterion(model(x), y)` is right or wrong by the last line of the model's forward, which may be in another file.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass

from fallline.rules.numerics._values import same, values_of
from fallline.syntax import Module

__all__ = [
    "Made",
    "last_name",
    "made_by",
    "operations",
    "output_of",
    "receiver",
    "self_similarity",
    "squared_base",
]

_DEEPEST = 12
_STARS = 4
# Methods and functions that change a tensor's shape, device or dtype, never its values.
SHAPE_OPS = frozenset(
    [
        "view",
        "reshape",
        "squeeze",
        "unsqueeze",
        "transpose",
        "permute",
        "flatten",
        "contiguous",
        "float",
        "double",
        "half",
        "to",
        "cuda",
        "cpu",
        "type",
        "type_as",
        "view_as",
        "reshape_as",
        "expand",
        "expand_as",
        "clone",
        "t",
        "movedim",
        "swapaxes",
        "unflatten",
        "detach",
        "bfloat16",
        "requires_grad_",
        "index_select",
        "gather",
        "masked_select",
        "repeat",
        "repeat_interleave",
        "diagonal",
        "narrow",
        "select",
        "chunk",
        "split",
        "roll",
        "flip",
        "take_along_dim",
    ]
)
_TRANSPARENT_LAYERS = frozenset(
    {"Dropout", "Dropout1d", "Dropout2d", "Identity", "Flatten", "Unflatten"}
)
_OPS_OF_LAYERS = {
    "Softmax": "softmax",
    "Softmax2d": "softmax",
    "LogSoftmax": "log_softmax",
    "LogSigmoid": "logsigmoid",
}


@dataclass(frozen=True, slots=True)
class Made:
    """The operation (`softmax`, `linear`, ...) that made a value, its call, and the file it stands in."""

    op: str
    call: ast.Call
    module: Module

    @property
    def line(self) -> int:
        return self.call.lineno


def last_name(call: ast.Call) -> str:
    """`log` for `torch.log(x)`, `x.log()` and `log(x)`."""
    func = call.func
    return (
        func.attr
        if isinstance(func, ast.Attribute)
        else func.id
        if isinstance(func, ast.Name)
        else ""
    )


def operations(module: Module, *names: str) -> Iterator[ast.Call]:
    """Calls of these tensor operations: `torch.log(x)`, `x.log()`, and `log(x)` imported from torch."""
    for call in module.method_calls(*names):
        dotted = module.resolve(call.func)
        if dotted is None or dotted.startswith("torch."):
            yield call
    for name in names:
        for home in ("torch", "torch.nn.functional", "torch.special"):
            yield from (c for c in module.calls(f"{home}.{name}") if isinstance(c.func, ast.Name))


def receiver(module: Module, call: ast.Call) -> ast.expr | None:
    """The tensor an operation works on: `x` of `x.log()` and of `torch.log(x)`."""
    name = module.resolve(call.func)
    if name is None and isinstance(call.func, ast.Attribute):
        return call.func.value
    if name is not None and name.startswith("torch."):
        return module.argument(call, 0, "input", "self", "x")
    return None


def squared_base(module: Module, of: ast.AST) -> ast.expr | None:
    """`x` where this is written `x ** 2`, `x * x`, `x.pow(2)`, `torch.square(x)`."""
    if isinstance(of, ast.BinOp):
        if isinstance(of.op, ast.Pow) and module.number(of.right) == 2:
            return of.left
        return of.left if isinstance(of.op, ast.Mult) and same(of.left, of.right) else None
    if not isinstance(of, ast.Call):
        return None
    if last_name(of) == "square":
        return receiver(module, of)
    exponent = module.argument(of, 0 if module.resolve(of.func) is None else 1, "exponent")
    squares = last_name(of) == "pow" and exponent is not None and module.number(exponent) == 2
    return receiver(module, of) if squares else None


def made_by(module: Module, node: ast.expr | ast.arg, depth: int = 0) -> Made | None:
    """The operation whose result this is; None where it is not known."""
    if depth > _DEEPEST:
        return None
    values = values_of(module)
    found = node if isinstance(node, ast.arg) else values.follow(node)
    if isinstance(found, ast.arg):
        return _agreed([made_by(module, source, depth + 1) for source in values.passed(found)])
    if isinstance(found, ast.Name):
        part = values.unpacked(found)
        return _of_call(module, part[0], depth, part[1]) if part is not None else None
    if isinstance(found, ast.Subscript):
        inner = values.follow(found.value)
        if (
            isinstance(inner, ast.Call)
            and isinstance(found.slice, ast.Constant)
            and isinstance(found.slice.value, int)
        ):
            return _of_call(module, inner, depth, found.slice.value)
        return made_by(module, found.value, depth + 1)
    if isinstance(found, ast.Attribute) and found.attr in {"T", "mT", "data"}:
        return made_by(module, found.value, depth + 1)
    return _of_call(module, found, depth) if isinstance(found, ast.Call) else None


def _of_call(module: Module, call: ast.Call, depth: int, element: int | None = None) -> Made | None:
    name = module.resolve(call.func)
    if name is not None and name.startswith("torch.") and not name.startswith("torch.nn.modules"):
        last = name.rpartition(".")[2]
        if last in SHAPE_OPS and call.args:
            return made_by(module, call.args[0], depth + 1)
        return Made(last, call, module) if last[:1].islower() else None
    if isinstance(call.func, ast.Attribute) and not _is_instance(call.func):
        if call.func.attr in SHAPE_OPS:
            return made_by(module, call.func.value, depth + 1)
        return Made(call.func.attr, call, module) if name is None else None
    return output_of(module, call.func, call, depth, element)


def self_similarity(module: Module, logits: ast.expr) -> bool:
    """`x @ x.T`, also divided by a temperature: the diagonal is the largest of its row, its softmax never small."""
    follow = values_of(module).follow
    found = follow(logits)
    while isinstance(found, ast.BinOp) and isinstance(found.op, ast.Div | ast.Mult):
        found = follow(found.left)
    if isinstance(found, ast.BinOp) and isinstance(found.op, ast.MatMult):
        left, right = found.left, found.right
    elif (
        isinstance(found, ast.Call)
        and last_name(found) in {"matmul", "mm"}
        and len(found.args) == 2
    ):
        left, right = found.args
    else:
        return False
    return module.segment(right).startswith(module.segment(left) + ".")


def _is_instance(func: ast.Attribute) -> bool:
    """`self.head(x)` calls something kept in an object; `x.softmax(1)` is a method of a tensor."""
    return isinstance(func.value, ast.Name) and func.value.id == "self"


def output_of(
    module: Module, callee: ast.expr, call: ast.Call, depth: int = 0, element: int | None = None
) -> Made | None:
    """The operation that makes what a model returns when it is called."""
    if depth > _DEEPEST:
        return None
    if isinstance(callee, ast.Name) and callee.id == "self":
        home = module.class_(callee)  # self(x) in a LightningModule
        return _of_forward(module, home, depth, element) if home is not None else None
    made = callee if isinstance(callee, ast.Call) else values_of(module).model(callee)
    if not isinstance(made, ast.Call):
        return None
    name = module.resolve(made.func)
    if name is not None and name.startswith("torch.nn."):
        return _of_layer(module, made, name.rpartition(".")[2], call, depth)
    cls = _class_of(module, made.func, name)
    if cls is not None:
        return _of_forward(cls[0], cls[1], depth, element)
    return _of_factory(module, made, call, depth, element)


def _of_factory(
    module: Module, made: ast.Call, call: ast.Call, depth: int, element: int | None
) -> Made | None:
    """`model = build_model()`: what the function returns."""
    function = module.functions.get(made.func.id) if isinstance(made.func, ast.Name) else None
    if function is None:
        return None
    returned = [
        r.value
        for r in module.all(ast.Return)
        if module.function(r) is function and r.value is not None
    ]
    return output_of(module, returned[0], call, depth + 1, element) if len(returned) == 1 else None


def _of_layer(
    module: Module, made: ast.Call, layer: str, call: ast.Call, depth: int
) -> Made | None:
    if layer != "Sequential":
        return Made(_OPS_OF_LAYERS.get(layer, layer.lower()), call, module)
    for last in reversed(_children(made)):
        if isinstance(last, ast.Starred):
            return None
        inner = values_of(module).model(last)
        if (
            isinstance(inner, ast.Call)
            and (module.resolve(inner.func) or "").rpartition(".")[2] in _TRANSPARENT_LAYERS
        ):
            continue
        found = output_of(module, last, call, depth + 1)
        if found is None or not isinstance(inner, ast.Call) or found.call is not call:
            return found
        return Made(found.op, inner, module)
    return None


def _children(made: ast.Call) -> list[ast.expr]:
    """The layers of a Sequential, given one by one or as an OrderedDict of pairs."""
    if (
        len(made.args) == 1
        and isinstance(made.args[0], ast.Call)
        and last_name(made.args[0]) == "OrderedDict"
    ):
        pairs = made.args[0].args[0] if made.args[0].args else None
        if isinstance(pairs, ast.List):
            return [p.elts[1] for p in pairs.elts if isinstance(p, ast.Tuple) and len(p.elts) == 2]
        return []
    return made.args


def _class_of(
    module: Module, func: ast.expr, name: str | None
) -> tuple[Module, ast.ClassDef] | None:
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


def _of_forward(module: Module, cls: ast.ClassDef, depth: int, element: int | None) -> Made | None:
    forward = next(
        (s for s in cls.body if isinstance(s, ast.FunctionDef) and s.name == "forward"), None
    )
    if forward is None:
        return None
    returned = [
        r.value
        for r in module.all(ast.Return)
        if module.function(r) is forward and r.value is not None
    ]
    picked = []
    for value in returned:
        whole = values_of(module).follow(value)
        if isinstance(whole, ast.Tuple):
            if element is None or not 0 <= element < len(whole.elts):
                return None
            whole = whole.elts[element]
        picked.append(made_by(module, whole, depth + 1))
    return _agreed(picked)


def _agreed(found: list[Made | None]) -> Made | None:
    """The one answer, where all paths give the same."""
    first = found[0] if found else None
    return (
        first
        if first is not None and all(f is not None and f.op == first.op for f in found)
        else None
    )
