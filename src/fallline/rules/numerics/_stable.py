"""The stable spelling of a logarithm: `log(softmax(x, 1))` → `log_softmax(x, 1)`, as this file would write it."""

from __future__ import annotations

import ast

from fallline.rules.numerics._layers import Made, last_name
from fallline.rules.numerics._values import values_of
from fallline.syntax import Module

__all__ = ["log_of", "still_means"]


def log_of(module: Module, made: Made, place: ast.AST, negative: bool = False) -> str | None:
    """Text for the log of what `made` computes (of one minus it, if `negative`), written at `place`.

    None where it cannot be written there with certainty.
    """
    call = made.call
    if made.module is not module or not still_means(module, call, place):
        return None
    if made.op == "softmax":
        return None if negative else _log_softmax(module, call)
    if made.op == "sigmoid":
        of = _operand(module, call)
        name = module.spelling("torch.nn.functional.logsigmoid")
        if of is None or name is None:
            return None
        text = module.segment(of)
        if negative:
            text = (
                f"-{text}"
                if isinstance(of, ast.Name | ast.Call | ast.Subscript | ast.Attribute)
                else f"-({text})"
            )
        return f"{name}({text})"
    return None


def _operand(module: Module, call: ast.Call) -> ast.expr | None:
    """`x` of `torch.sigmoid(x)`, `x.sigmoid()`, `nn.Sigmoid()(x)`."""
    if module.resolve(call.func) is None and isinstance(call.func, ast.Attribute) and not call.args:
        return call.func.value
    return call.args[0] if len(call.args) == 1 and not call.keywords else None


def _log_softmax(module: Module, call: ast.Call) -> str | None:
    written, callee = module.segment(call), module.segment(call.func)
    arguments = written[len(callee) :]
    if (
        last_name(call) == "softmax"
        and isinstance(call.func, ast.Attribute)
        and not _is_self(call.func.value)
    ):
        return callee[: -len("softmax")] + "log_softmax" + arguments
    if isinstance(call.func, ast.Name) and (module.resolve(call.func) or "").startswith("torch."):
        name = module.spelling("torch.nn.functional.log_softmax") or module.spelling(
            "torch.log_softmax"
        )
        return None if name is None else name + arguments
    made = call.func if isinstance(call.func, ast.Call) else values_of(module).model(call.func)
    dim = module.argument(made, 0, "dim") if isinstance(made, ast.Call) else None
    name = module.spelling("torch.log_softmax")
    if name is None or dim is None or module.number(dim) is None or len(call.args) != 1:
        return None
    return f"{name}({module.segment(call.args[0])}, dim={module.segment(dim)})"


def _is_self(node: ast.expr) -> bool:
    return isinstance(node, ast.Name) and node.id == "self"


def still_means(module: Module, call: ast.Call, place: ast.AST) -> bool:
    """Whether the names in `call` still have at `place` the values they had where the call stands."""
    if call is place or any(up is place for up in module.parents(call)):
        return True
    if any(isinstance(n, ast.Call) and n is not call for n in ast.walk(call)):
        return False  # a model would run twice
    scope = module.scope(place)
    if module.scope(call) is not scope:
        return False
    first, last = module.statement(call).lineno, getattr(place, "lineno", 0)
    for name in ast.walk(call):
        if isinstance(name, ast.Name) and any(
            first <= getattr(b, "lineno", 0) <= last for b in module.bindings(name.id, scope)
        ):
            return False
    return True
