"""Losses that were made leaves of autograd's graph by hand: `torch.tensor(loss, requires_grad=True)`, `loss.requires_grad = True`, and parameters of which only the number is used."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from fallline.flow.calls import last_name
from fallline.flow.values import values_of
from fallline.syntax import Module
from fallline.syntax.nodes import below
from fallline.syntax.once import once

__all__ = [
    "SAYS_LOSS",
    "asked_to_require",
    "is_leaf_copy",
    "only_numbers",
    "reduced",
    "requires_grad_set",
    "returned_copies",
]

SAYS_LOSS = re.compile(r"loss|(^|_)(kl|reg|nll|penalty|entropy)(_|$)|criterion", re.IGNORECASE)
_MAKES_LEAF = frozenset({"Variable", "tensor", "FloatTensor", "as_tensor"})
_SAME_VALUE = frozenset({"mean", "sum", "squeeze", "unsqueeze", "view", "to", "cuda", "cpu", "float"})  # fmt: skip
_NUMBER_OF = frozenset({"detach", "item", "tolist", "numpy"})
_LOOKED_AT = frozenset({"grad", "shape", "size", "dtype", "device", "zero_grad", "requires_grad"})
_SHOWS = frozenset({"print", "append", "format", "write", "info", "log", "add_scalar", "round"})


def reduced(module: Module, loss: ast.expr) -> ast.expr | ast.arg:
    """What a loss is the mean or the sum of, or what it stands for."""

    def inner(made: ast.expr) -> ast.expr | None:
        match made:
            case ast.Call(ast.Attribute(of, attr) as func) if attr in _SAME_VALUE:
                return None if module.resolve(func) else of
        return None

    return values_of(module).through(loss, inner)


def is_leaf_copy(module: Module, made: ast.Call) -> bool:
    """`torch.tensor(loss, requires_grad=True)`, `Variable(loss.data, requires_grad=True)` of something computed."""
    wants = module.argument(made, None, "requires_grad")
    if last_name(made) not in _MAKES_LEAF or wants is None or module.constant(wants) is not True:
        return False
    given = made.args[0] if made.args else None
    parts = [*below(given, ast.Call), *below(given, ast.Name)] if given is not None else []
    return any(not isinstance(module.constant(n), int | float) for n in parts)


def returned_copies(module: Module) -> Iterator[tuple[ast.expr | ast.stmt, str, bool]]:
    """Losses that a function gives back as leaves, for somebody out of view to call backward on: where, their name, and whether a copy is made."""
    for statement in module.all(ast.Return):
        value = statement.value
        while isinstance(value, ast.Tuple) and value.elts:
            value = value.elts[0]
        if value is None or module.function(statement) is None:
            continue
        made = reduced(module, value)
        if isinstance(made, ast.Call) and is_leaf_copy(module, made):
            name = _copied_loss(made)
            if name and not _only_if_needed(module, made, name):
                yield made, name, True
        elif isinstance(value, ast.Name) and _is_loss(value.id) and isinstance(made, ast.Call):
            yield from (
                (s, value.id, False) for s in requires_grad_set(module, value.id, statement)
            )


def _copied_loss(made: ast.Call) -> str:
    """The name of the loss whose number is copied; nothing where something else is."""
    given: ast.expr = made.args[0]
    while True:
        match given:
            case ast.Attribute(inner, "data") | ast.Call(ast.Attribute(inner)):
                given = inner
            case ast.UnaryOp(operand=inner):
                given = inner
            case ast.Name(name) | ast.Attribute(attr=name):
                return name if _is_loss(name) else ""
            case _:
                return ""


def _only_if_needed(module: Module, made: ast.Call, name: str) -> bool:
    """`if not isinstance(loss, Tensor): loss = torch.tensor(loss, requires_grad=True)`: a number that had no graph before."""
    up: ast.AST | None = module.parent(made)
    while up is not None and not isinstance(up, ast.FunctionDef | ast.AsyncFunctionDef):
        if isinstance(up, ast.If) and name in {n.id for n in below(up.test, ast.Name)}:
            return True
        up = module.parent(up)
    return False


def requires_grad_set(module: Module, name: str, until: ast.Call | ast.Return) -> Iterator[ast.stmt]:  # fmt: skip
    """`loss.requires_grad = True` and `loss.requires_grad_()` in the same function, before the backward or return and after the loss is bound."""
    scope = module.scope(until)
    bound = [b for b in module.bindings(name, scope) if getattr(b, "lineno", 0) < until.lineno]
    last = max((getattr(b, "lineno", 0) for b in bound), default=0)
    for node in asked_to_require(module, name, scope):
        sets = isinstance(node.ctx, ast.Store) or node.attr.endswith("_")
        if sets and last <= node.lineno < until.lineno and _is_loss(name):
            yield module.statement(node)


def asked_to_require(module: Module, name: str, scope: ast.AST | None) -> list[ast.Attribute]:
    """`x.requires_grad` and `x.requires_grad_` of this name in this function."""
    return [n for n in _required(module).get(name, ()) if module.scope(n) is scope]


@once
def _required(module: Module) -> dict[str, list[ast.Attribute]]:
    found: dict[str, list[ast.Attribute]] = {}
    for node in module.all(ast.Attribute):
        match node:
            case ast.Attribute(ast.Name(name), "requires_grad" | "requires_grad_"):
                found.setdefault(name, []).append(node)
    return found


def _is_loss(name: str) -> bool:
    return SAYS_LOSS.search(name) is not None or name in {"cost", "err", "error", "total"}


def only_numbers(module: Module) -> Iterator[tuple[ast.expr, str]]:
    """Parameters given to an optimizer by name, of which nothing but the number is ever computed with: the cut, and the parameter."""
    for call in module.calls_resolved(lambda name: name.startswith("torch.optim.")):
        for parameter in _named_parameters(module, call):
            uses = [
                node
                for node in module.all(ast.Name)
                if node.id == parameter.id and isinstance(node.ctx, ast.Load)
                and module.scope(node) is module.scope(call)
            ]  # fmt: skip
            cuts = [cut for use in uses if (cut := _cut(module, use)) is not None]
            others = [u for u in uses if _cut(module, u) is None and not _aside(module, u, call)]
            inside = [cut for cut in cuts if module.in_loop(cut)]
            if inside and not others and not module.in_loop(call):
                yield inside[0], parameter.id


def _named_parameters(module: Module, call: ast.Call) -> list[ast.Name]:
    """`a` and `b` of `torch.optim.Adam([a, b])`, also where the list has a name."""
    given = values_of(module).origin(call.args[0]) if call.args else None
    return [e for e in given.elts if isinstance(e, ast.Name)] if isinstance(given, ast.List) else []


def _cut(module: Module, use: ast.Name) -> ast.expr | None:
    """`x.detach()`, `x.item()`, `x.data` where the result is computed with, not shown."""
    cut = module.parent(use)
    if not isinstance(cut, ast.Attribute) or cut.attr not in _NUMBER_OF | {"data"}:
        return None
    up = module.parent(cut)
    whole: ast.expr = cut
    while isinstance(up, ast.Attribute) or (isinstance(up, ast.Call) and up.func is whole):
        whole, up = up, module.parent(up)
    return None if _is_shown(module, whole) else whole


def _is_shown(module: Module, node: ast.AST) -> bool:
    up = module.parent(node)
    while up is not None and not isinstance(up, ast.stmt):
        if isinstance(up, ast.JoinedStr) or (isinstance(up, ast.Call) and last_name(up) in _SHOWS):
            return True
        up = module.parent(up)
    return isinstance(up, ast.Expr) and not isinstance(up.value, ast.Call)


def _aside(module: Module, use: ast.Name, optimizer: ast.Call) -> bool:
    """A use that computes nothing: it is shown, looked at, or is the list for the optimizer."""
    up = module.parent(use)
    if isinstance(up, ast.Attribute) and (
        up.attr in _LOOKED_AT or up.attr in _NUMBER_OF | {"data"}
    ):
        return True
    statement = module.statement(use)
    if statement is module.statement(optimizer) or _is_shown(module, use):
        return True
    match statement:
        case ast.Assign([ast.Name()], ast.List(elts)):
            return use in elts
    return False
