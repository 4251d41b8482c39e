"""Whether a value surely has no gradient: made of constants, shapes, ranges and what was detached.

An infinite slope harms nobody where nothing is differentiated: coordinates, noise schedules, importance scores.
"""

from __future__ import annotations

import ast
import re

from fallline.flow.calls import last_name, names_in, of_self
from fallline.flow.recording import under_no_grad
from fallline.flow.values import values_of
from fallline.syntax import Module
from fallline.syntax.nodes import below

__all__ = ["begins_random", "detached_later", "takes_no_gradient"]

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

    def all_of(*parts: ast.AST, also: frozenset[str] = seen) -> bool:
        return all(takes_no_gradient(module, p, also) for p in parts)

    match node:
        case ast.Constant() | ast.Compare():
            return True
        case ast.Name(name):
            return name in seen or _name(module, node, seen | {name})
        case ast.Attribute(attr=name):
            return name in _TOLD or module.resolve(node) is not None or _fixed(module, node)
        case ast.Tuple(elts) | ast.List(elts):
            return all_of(*elts)
        case ast.BinOp(left, _, right):
            return all_of(left, right)
        case ast.ListComp(element, generators) | ast.GeneratorExp(element, generators):
            counted = names_in(*(g.target for g in generators))
            return all_of(*(g.iter for g in generators)) and all_of(element, also=seen | counted)
        case ast.UnaryOp(operand=inner) | ast.Subscript(value=inner):
            return all_of(inner)
        case ast.Call():
            return _call(module, node, seen)
    return False


def detached_later(module: Module, node: ast.expr) -> bool:
    """`power = x.pow(2).pow(0.5)`, of which nothing but `self.norm(power).detach()` is used."""
    match module.parent(node):
        case ast.Assign([ast.Name(name)]):
            pass
        case _:
            return False
    function = module.function(node)
    uses = (
        [n for n in below(function, ast.Name) if n.id == name and n.lineno > node.lineno]
        if function
        else []
    )
    return bool(uses) and all(_under_detach(module, use) for use in uses)


def _under_detach(module: Module, use: ast.Name) -> bool:
    for up in module.parents(use):
        match up:
            case ast.Call(ast.Attribute(attr="detach")):
                return True
            case ast.stmt():
                return False
    return False


_RANDOM = re.compile(r"Parameter\(.*\b(randn?|normal|uniform)\w*\(|\bEmbedding\(", re.DOTALL)


def begins_random(module: Module, node: ast.expr) -> bool:
    """A row of a parameter or an embedding that begins with random numbers: no output of a model is ever equal to it."""
    found = values_of(module).through(node, lambda n: n.value if isinstance(n, ast.Subscript) else None)  # fmt: skip
    if isinstance(found, ast.Call) and of_self(found.func) is not None:
        found = found.func  # `self.embedding(labels)`
    cls, kept = module.class_(node), of_self(found)
    made = module.attribute_values(cls, kept) if cls is not None and kept is not None else [found]
    return all(_RANDOM.search(module.segment(value)) for value in made)


def _fixed(module: Module, node: ast.Attribute) -> bool:
    """`self.x`, a buffer or a plain number."""
    cls = module.class_(node)
    if cls is None or of_self(node) is None:
        return False
    match values_of(module).attribute(node):
        case ast.Call(ast.Name("float" | "int")):
            return True
        case ast.Call() as made if not isinstance(made.func, ast.Name):
            return takes_no_gradient(module, made)
    # also `register_buffer = lambda name, value: self.register_buffer(...)`, as diffusion models write it
    return any(
        module.class_(call) is cls and call.args and module.constant(call.args[0]) == node.attr
        for call in module.all(ast.Call)
        if last_name(call) == "register_buffer"
    )


def _call(module: Module, call: ast.Call, seen: frozenset[str]) -> bool:
    name = last_name(call)
    if name in _FRESH:
        return not any(k.arg == "requires_grad" for k in call.keywords)
    # `nn.Parameter(...)`, `nn.Linear(...)`: what a class makes may well be trained
    if name.removesuffix("_like") in _STANDS_IN or name[:1].isupper():
        return False
    given: list[ast.AST] = [*call.args, *(k.value for k in call.keywords)]
    if not (module.resolve(call.func) or "").startswith("torch."):
        if not isinstance(call.func, ast.Attribute):
            return False
        given.append(call.func.value)
    return all(takes_no_gradient(module, a, seen) for a in given)


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
    if under_no_grad(module, binding):
        return True
    up = module.parent(binding)
    match module.parent(up) if isinstance(up, ast.Tuple) else up:
        case ast.Assign(value=value) | ast.AnnAssign(value=value) | ast.AugAssign(value=value):
            return takes_no_gradient(module, value, seen)
    return False


def _detached(node: ast.expr) -> bool:
    """Cut off where it is handed over. Numbers that an example passes in say nothing about other callers."""
    match node:
        case ast.Attribute(attr="data" | "grad"):
            return True
    return isinstance(node, ast.Call) and last_name(node) == "detach"


def _written_into(module: Module, name: str, scope: ast.AST | None) -> bool:
    """`x[i] = y`, `x.add_(y)`: what went in may have had a gradient."""
    for node in ast.walk(scope if scope is not None else module.tree):
        match node:
            case ast.Subscript(ast.Name(written), _, ast.Store()) if written == name:
                return True
            case ast.Attribute(ast.Name(written), method) if written == name:
                if method.endswith("_") and method[:1] != "_":
                    return True
    return False
