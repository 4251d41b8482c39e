"""What a rollout collects under no_grad and hands to the loss: log-probabilities that no gradient can go through."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from fallline.flow.recording import under_no_grad
from fallline.flow.values import values_of
from fallline.syntax import Module
from fallline.syntax.nodes import below

__all__ = ["collected_without_graph"]

_JOINS = frozenset({"torch.stack", "torch.cat", "torch.concat"})
_HANDS_ON = frozenset("cpu cuda to float unsqueeze squeeze view reshape flatten".split())
_DEEPEST = 16


def collected_without_graph(module: Module, name: ast.expr) -> bool:
    """`torch.stack(logps)` of what was appended under no_grad; or an argument of this function that every caller takes out of a function which computed it so."""
    function = module.function(name)
    joined = _joined(module, name)
    if joined is not None:
        return _without_graph(module, joined, _DEEPEST)
    if not isinstance(name, ast.Name) or function is None:
        return False
    match module.bindings(name.id, function):
        case [ast.arg() as given]:
            passed = values_of(module).passed(given)
            return bool(passed) and all(_from_rollout(module, value) for value in passed)
    return False


def _joined(module: Module, node: ast.expr) -> ast.expr | None:
    """`logps` of `torch.stack(logps).requires_grad_()`, a list that this scope fills."""

    def inside(made: ast.expr) -> ast.expr | None:
        match made:
            case ast.Call(ast.Attribute(inner, method)) if method in _HANDS_ON | {"requires_grad_"}:
                return inner
        return None

    match values_of(module).through(node, inside):
        case ast.Call(args=[(ast.Name() | ast.Attribute(ast.Name("self"))) as kept, *_]) as made:
            return kept if module.resolve(made.func) in _JOINS else None
    return None


def _from_rollout(module: Module, value: ast.expr) -> bool:
    """`rewards, logps, states = rollout(policy)`: what is there in each return of `rollout`."""
    if not isinstance(value, ast.Name):
        return False
    match module.bindings(value.id, module.scope(value)):
        case [ast.Name() as bound]:
            pass
        case _:
            return False
    up = module.parent(bound)
    match up, module.parent(up) if up is not None else None:
        case ast.Tuple(names), ast.Assign(value=ast.Call(ast.Name(called))):
            function, place = module.functions.get(called), names.index(bound)
        case _:
            return False
    results = [n.value for n in below(function, ast.Return)] if function else []
    return bool(results) and all(
        isinstance(r, ast.Tuple)
        and len(r.elts) > place
        and _without_graph(module, r.elts[place], _DEEPEST)
        for r in results
    )


def _without_graph(module: Module, node: ast.expr, depth: int) -> bool:
    """It was computed under no_grad, and only moved, shaped and collected since."""
    if not depth:
        return False
    match node:
        case ast.Call(ast.Attribute(attr="detach" | "item")):
            return True
        case ast.Name() | ast.Attribute(ast.Name("self")):
            made = list(_made_of(module, node))
            return bool(made) and all(
                under_no_grad(module, m) or _without_graph(module, m, depth - 1) for m in made
            )
        case ast.Call(ast.Attribute(inner, method)) if method in _HANDS_ON:
            return _without_graph(module, inner, depth - 1)
        case ast.Call(args=[inner, *_]) if module.resolve(node.func) in _JOINS:
            return _without_graph(module, inner, depth - 1)
    return False


def _made_of(module: Module, name: ast.Name | ast.Attribute) -> Iterator[ast.expr]:
    """What a name or `self.x` is bound to, and what is appended to it; an empty list to begin with is neither."""
    if isinstance(name, ast.Attribute):
        yield from _kept_in(module, name)
        return
    scope = module.scope(name)
    for bound in module.bindings(name.id, scope):
        value = _value(module, bound)
        match value:
            case None:
                yield name  # a loop, an argument: not known, and it leads nowhere
            case ast.List(elts=[]):
                continue
            case _:
                yield value
    for call in module.method_calls("append"):
        match call:
            case ast.Call(ast.Attribute(ast.Name(kept)), [value]) if kept == name.id:
                if module.scope(call) is scope:
                    yield value


def _kept_in(module: Module, held: ast.Attribute) -> Iterator[ast.expr]:
    """What the methods of a class append to `self.x`."""
    cls = module.class_(held)
    for call in module.method_calls("append"):
        match call:
            case ast.Call(ast.Attribute(ast.Attribute(ast.Name("self"), kept)), [value]):
                if kept == held.attr and module.class_(call) is cls:
                    yield value


def _value(module: Module, bound: ast.AST) -> ast.expr | None:
    up = module.parent(bound)
    match up, module.parent(up) if up is not None else None:
        case ast.Assign(value=value), _:
            return value
        case ast.Tuple(names), ast.Assign(value=ast.Tuple(values)) if len(names) == len(values):
            return next(v for n, v in zip(names, values, strict=True) if n is bound)
        case ast.Tuple(), ast.Assign(value=value):
            return value
    return None
