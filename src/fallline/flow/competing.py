"""Softmaxes over a dimension in which nothing can compete: one value, or the samples of a batch."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from fallline.flow.calls import last_name, operand, operations, receiver
from fallline.flow.hints import is_logits
from fallline.flow.places import in_training
from fallline.flow.shapes import shape_of
from fallline.flow.values import values_of
from fallline.syntax import Module

__all__ = ["over_one_value", "over_the_samples"]

_LAYERS = frozenset({"torch.nn.Softmax", "torch.nn.LogSoftmax"})


def over_one_value(module: Module) -> Iterator[ast.Call]:
    """The last dimension of what `nn.Linear(n, 1)` gives: `softmax(self.score(x), dim=-1)` is 1 everywhere."""
    for call in operations(module, "softmax", "log_softmax"):
        of = receiver(module, call)
        if of is None or module.number(operand(module, call, "dim")) != -1:
            continue
        shape = shape_of(module, of)
        if shape is not None and shape.dims and shape.dims[-1] == 1:
            yield call
    for made in module.calls("torch.nn.Sequential"):
        for first, second in zip(made.args, made.args[1:], strict=False):
            if _is_single(module, first) and _over_the_last(module, second):
                assert isinstance(second, ast.Call)
                yield second


def _is_single(module: Module, layer: ast.expr) -> bool:
    """`nn.Linear(n, 1)`."""
    match layer:
        case ast.Call(func) if module.resolve(func) == "torch.nn.Linear":
            return module.number(module.argument(layer, 1, "out_features")) == 1
    return False


def _over_the_last(module: Module, layer: ast.expr) -> bool:
    match layer:
        case ast.Call(func) if module.resolve(func) in _LAYERS:
            return module.number(module.argument(layer, 0, "dim")) == -1
    return False


def over_the_samples(module: Module) -> Iterator[ast.Call]:
    """`return F.log_softmax(self.fc(x), dim=0)` at the end of a model, or of logits in a loss: each class normalised over the batch."""
    for call in operations(module, "softmax", "log_softmax"):
        if module.number(operand(module, call, "dim")) != 0:
            continue
        of = receiver(module, call)
        if of is not None and _are_logits(of) and in_training(module, call):
            yield call
            continue
        if not _is_returned(module, call):
            continue
        made = values_of(module).origin(of) if of is not None else None
        layer = values_of(module).constructed(made.func) if isinstance(made, ast.Call) else None
        if layer is None or last_name(layer) != "Linear" or _is_single(module, layer):
            continue
        yield call


def _are_logits(node: ast.expr) -> bool:
    """`logits`, `outputs.logits / temperature`; one row of them, `logits[i]`, has its classes in dimension 0."""
    match node:
        case ast.Name(name) | ast.Attribute(attr=name):
            return is_logits(name)
        case ast.BinOp(left, ast.Div() | ast.Mult()):
            return _are_logits(left)
    return False


def _is_returned(module: Module, call: ast.Call) -> bool:
    """By the forward of a model, at once or under a name."""
    function, cls = module.function(call), module.class_(call)
    if function is None or function.name != "forward" or cls is None:
        return False
    if not module.is_module_class(cls):
        return False
    if isinstance(module.parent(call), ast.Return):
        return True
    named = values_of(module).named(call)
    uses = values_of(module).uses(named[1].id, module.scope(call), named[0]) if named else []
    return any(isinstance(module.parent(use), ast.Return) for use in uses)
