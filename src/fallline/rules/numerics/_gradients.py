"""Whether a value surely has no gradient: made of constants, shapes, ranges and what was detached.

An infinite slope harms nobody where nothing is differentiated: coordinates, noise schedules, importance scores.
"""

from __future__ import annotations

import ast

from fallline.rules.numerics._layers import last_name
from fallline.rules.numerics._values import values_of
from fallline.syntax import Module

__all__ = ["takes_no_gradient"]

# What these return has no history, whatever they were given.
_FRESH = frozenset(
    "detach item size numel len range arange linspace logspace zeros ones full eye empty zeros_like ones_like full_like empty_like "
    "argmax argmin".split()
)
# In examples these stand for data, or for a model's output.
_STANDS_IN = frozenset("rand randn randint normal tensor as_tensor load from_numpy".split())
_TOLD = frozenset({"shape", "device", "dtype", "ndim", "grad", "data"})


def takes_no_gradient(
    module: Module, node: ast.AST | None, seen: frozenset[str] = frozenset()
) -> bool:
    """Whether nothing that this is made of can require a gradient. False where that is not known."""
    if isinstance(node, ast.Constant):
        return True
    if isinstance(node, ast.Name):
        return node.id in seen or _name(module, node, seen | {node.id})
    if isinstance(node, ast.Attribute):
        return node.attr in _TOLD or module.resolve(node) is not None or _fixed(module, node)
    if isinstance(node, ast.Tuple | ast.List):
        return all(takes_no_gradient(module, e, seen) for e in node.elts)
    if isinstance(node, ast.BinOp):
        return takes_no_gradient(module, node.left, seen) and takes_no_gradient(
            module, node.right, seen
        )
    if isinstance(node, ast.ListComp | ast.GeneratorExp):
        counted = {
            n.id for g in node.generators for n in ast.walk(g.target) if isinstance(n, ast.Name)
        }
        return all(takes_no_gradient(module, g.iter, seen) for g in node.generators) and (
            takes_no_gradient(module, node.elt, seen | counted)
        )
    if isinstance(node, ast.UnaryOp):
        return takes_no_gradient(module, node.operand, seen)
    if isinstance(node, ast.Subscript):
        return takes_no_gradient(module, node.value, seen)
    return isinstance(node, ast.Call) and _call(module, node, seen)


def _fixed(module: Module, node: ast.Attribute) -> bool:
    """`self.x`, a buffer or a plain number."""
    cls = module.class_(node)
    if cls is None or not (isinstance(node.value, ast.Name) and node.value.id == "self"):
        return False
    made = values_of(module).attribute(node)
    if isinstance(made, ast.Call) and isinstance(made.func, ast.Name):
        return made.func.id in {"float", "int"}
    return any(
        module.class_(call) is cls and call.args and module.constant(call.args[0]) == node.attr
        for call in module.method_calls("register_buffer")
    )


def _call(module: Module, call: ast.Call, seen: frozenset[str]) -> bool:
    if last_name(call) in _FRESH:
        return not any(k.arg == "requires_grad" for k in call.keywords)
    if last_name(call).removesuffix("_like") in _STANDS_IN:
        return False
    given: list[ast.AST] = [*call.args, *(k.value for k in call.keywords)]
    if (module.resolve(call.func) or "").startswith("torch."):
        return all(takes_no_gradient(module, a, seen) for a in given)
    return isinstance(call.func, ast.Attribute) and all(
        takes_no_gradient(module, a, seen) for a in [call.func.value, *given]
    )


def _name(module: Module, name: ast.Name, seen: frozenset[str]) -> bool:
    scope = module.scope(name)
    bound = module.bindings(name.id, scope)
    return (
        bool(bound)
        and all(_binding(module, b, seen) for b in bound)
        and not _written_into(module, name.id, scope)
    )


def _binding(module: Module, binding: ast.AST, seen: frozenset[str]) -> bool:
    if isinstance(binding, ast.arg):
        passed = values_of(module).passed(binding)
        return bool(passed) and all(_detached(p) for p in passed)
    up = module.parent(binding)
    if isinstance(up, ast.Tuple):
        up = module.parent(up)
    return isinstance(up, ast.Assign | ast.AnnAssign | ast.AugAssign) and takes_no_gradient(
        module, up.value, seen
    )


def _detached(node: ast.expr) -> bool:
    """Cut off where it is handed over. Numbers that an example passes in say nothing about other callers."""
    if isinstance(node, ast.Attribute):
        return node.attr in {"data", "grad"}
    return isinstance(node, ast.Call) and last_name(node) == "detach"


def _written_into(module: Module, name: str, scope: ast.AST | None) -> bool:
    """`x[i] = y`, `x.add_(y)`: what went in may have had a gradient."""
    for node in ast.walk(scope if scope is not None else module.tree):
        if isinstance(node, ast.Subscript):
            target, writes = node.value, isinstance(node.ctx, ast.Store)
        elif isinstance(node, ast.Attribute):
            target, writes = node.value, node.attr.endswith("_") and node.attr[:1] != "_"
        else:
            continue
        if writes and isinstance(target, ast.Name) and target.id == name:
            return True
    return False
