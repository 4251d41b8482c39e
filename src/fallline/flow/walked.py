"""Losses whose backward is written in a loop: wherever such a loss comes from, it has a graph there, or the backward would raise."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace

from fallline.flow.calls import last_name, names_in
from fallline.flow.recording import under_no_grad
from fallline.syntax import Module
from fallline.syntax.nodes import below, is_name, written
from fallline.syntax.once import once

__all__ = ["Walked", "kept_beside_backward", "walked_losses"]

_SAME_GRAPH = frozenset("mean sum clone squeeze view reshape mul div to cpu cuda float".split())
_KEEPS = frozenset({"append", "extend", "insert"})


@dataclass(frozen=True)
class Walked:
    """`loss` of `loss.backward()`, of `scaler.scale(loss / k).backward()`, of `accelerator.backward(loss)`; in a dict, the dict's name."""

    backward: ast.Call
    loss: str  # as it is written: a name, or `output.loss`
    several: bool  # a dict of losses, of which one is walked
    loop: ast.For | ast.While


@once
def walked_losses(module: Module) -> list[Walked]:
    """Each in the innermost loop of its own function."""
    found: list[Walked] = []
    for call in module.method_calls("backward"):
        assert isinstance(call.func, ast.Attribute)
        value = _of(call.args[0] if call.args else call.func.value)
        if call.args and not isinstance(call.func.value, ast.Name | ast.Attribute):
            continue  # `loss(x).backward(gradient)`
        loop = next((u for u in module.parents(call) if isinstance(u, ast.For | ast.While)), None)
        if loop is None or module.function(loop) is not module.function(call):
            continue
        match value:
            case ast.Name(name):
                found.append(Walked(call, name, False, loop))
            case ast.Subscript(ast.Name(name)):
                found.append(Walked(call, name, True, loop))
            case ast.Attribute(ast.Name(), "loss"):
                found.append(Walked(call, written(value), False, loop))
    return found


def _of(value: ast.expr) -> ast.expr:
    """Without what scales it."""
    match value:
        case ast.Call(ast.Attribute(attr="scale"), [inner, *_]):
            return _of(inner)
        case ast.Call(ast.Attribute(inner, name)) if name in _SAME_GRAPH:
            return _of(inner)
        case ast.BinOp(inner, ast.Div() | ast.Mult()):
            return _of(inner)
    return value


def kept_beside_backward(module: Module) -> Iterator[tuple[ast.stmt, str]]:
    """`total += loss`, `history[key] = history.get(key, 0) + losses[key] * n`, in a loop that walks that loss and is not done with what it adds to."""
    for walked in _with_terms(module):
        base = walked.loss.partition(".")[0]
        if any(_cuts(value) for value in _bound_in(walked.loop, walked.loss)):
            continue
        for statement in below(walked.loop, ast.AugAssign, ast.Assign, ast.Expr):
            if module.function(statement) is not module.function(walked.backward):
                continue
            kept = _keeps(statement, walked)
            if kept is None or kept == base or under_no_grad(module, statement):
                continue
            if not _walked_or_begun(module, walked.loop, kept):
                yield statement, walked.loss


# `kl_weight`: the number that a term is weighted by
_WEIGHT = re.compile(
    r"(?i)weight|coef|scale|factor|lambda|alpha|beta|gamma|size|num|count|len|step|mask"
)


def _with_terms(module: Module) -> list[Walked]:
    """The losses and the terms they are added up from: `loss = policy_loss + c * value_loss`."""
    found: dict[tuple[str, ast.AST], Walked] = {}
    for walked in walked_losses(module):
        found.setdefault((walked.loss, walked.loop), walked)
        if walked.several or "." in walked.loss:
            continue
        for value in _bound_in(walked.loop, walked.loss):
            for name in _added_up(value):
                made = _bound_in(walked.loop, name)
                computed = any(isinstance(m, ast.Call | ast.BinOp) for m in made)
                if name != walked.loss and computed and not _WEIGHT.search(name):
                    found.setdefault((name, walked.loop), replace(walked, loss=name))
    return list(found.values())


def _added_up(value: ast.expr) -> Iterator[str]:
    match value:
        case ast.BinOp(left, ast.Add() | ast.Sub() | ast.Mult() | ast.Div(), right):
            yield from _added_up(left)
            yield from _added_up(right)
        case ast.UnaryOp(operand=inner):
            yield from _added_up(inner)
        case ast.Name(name):
            yield name


def _bound_in(loop: ast.For | ast.While, name: str) -> list[ast.expr]:
    return [a.value for a in below(loop, ast.Assign) if any(written(t) == name for t in a.targets if isinstance(t, ast.Name | ast.Attribute))]  # fmt: skip


def _keeps(statement: ast.stmt, walked: Walked) -> str | None:
    """The name of the sum, the list or the dict that the loss is put into as it is; of `self.total`, `self.total`."""
    match statement:
        case ast.AugAssign(target, ast.Add(), value) if _as_it_is(value, walked):
            return _holder(target)
        case ast.Assign([target], ast.BinOp(left, ast.Add(), right)):
            for old, value in ((left, right), (right, left)):
                if _as_it_is(value, walked) and _is_old(old, target):
                    return _holder(target)
        case ast.Expr(ast.Call(ast.Attribute(kept, name), [*_, value])) if name in _KEEPS:
            return _holder(kept) if _as_it_is(value, walked) else None
    return None


def _is_old(old: ast.expr, target: ast.expr) -> bool:
    """`total` of `total = total + loss`; `history.get(key, 0)` of `history[key] = ...`."""
    match old, target:
        case ast.Call(ast.Attribute(of, "get"), [_, *_]), ast.Subscript(held):
            return written(of) == written(held)
        case ((ast.Name() | ast.Attribute() | ast.Subscript()), _):
            return ast.unparse(old) == ast.unparse(target)
    return False


def _holder(target: ast.expr) -> str | None:
    match target:
        case ast.Subscript(held):
            return _holder(held)
        case ast.Name() | ast.Attribute(ast.Name("self")):
            return written(target)
    return None


def _as_it_is(value: ast.expr, walked: Walked) -> bool:
    """The loss with its graph: also times a number of samples, or its mean."""
    match value:
        case ast.Name() | ast.Attribute() if written(value) == walked.loss:
            return not walked.several
        case ast.Subscript(inner):
            return walked.several and is_name(inner, walked.loss)
        case ast.BinOp(left, ast.Mult() | ast.Div(), right):
            return _as_it_is(left, walked) or _as_it_is(right, walked)
        case ast.Call(ast.Attribute(inner, name)) if name in _SAME_GRAPH:
            return _as_it_is(inner, walked)
    return False


def _cuts(value: ast.expr) -> bool:
    calls = below(value, ast.Call)
    return any(last_name(c) in {"detach", "item", "tolist", "float"} for c in calls)


def _walked_or_begun(module: Module, loop: ast.For | ast.While, kept: str) -> bool:
    """What is kept has a backward of its own somewhere in the function, or begins again in each round of the loop."""
    home: ast.AST = module.function(loop) or module.tree
    begun = any(
        isinstance(t, ast.Name | ast.Attribute) and written(t) == kept
        for a in loop.body
        if isinstance(a, ast.Assign)
        and not (
            isinstance(a.value, ast.BinOp)
            and kept in {written(n) for n in below(a.value, ast.Name, ast.Attribute)}
        )
        for t in a.targets
    )
    name = kept.rpartition(".")[2]
    backwards = (c for c in below(home, ast.Call) if last_name(c) == "backward")
    return begun or any(name in names_in(c) or kept in ast.unparse(c) for c in backwards)
