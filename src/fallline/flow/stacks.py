"""Which layers run one after the other: what a Sequential, a list of layers or the lines of a forward add up to."""

from __future__ import annotations

import ast
import re
from dataclasses import astuple, dataclass

from fallline.flow.calls import of_self
from fallline.flow.modules import module_class
from fallline.flow.values import values_of
from fallline.syntax import Module
from fallline.syntax.nodes import below

__all__ = ["Stack", "forward_stacks", "stack_of"]

_WEIGHTS = re.compile(r"torch\.nn\.(Lazy)?(Linear|Conv(Transpose)?\dd)")
_SIGMOID = frozenset({"torch.nn.Sigmoid", "torch.nn.functional.sigmoid"})
_TANH = frozenset({"torch.nn.Tanh", "torch.nn.functional.tanh"})


@dataclass(frozen=True, slots=True)
class Stack:
    """What a chain of layers is made of; `unknown` counts parts that cannot be seen into."""

    sigmoid: int = 0
    tanh: int = 0
    weights: int = 0
    norms: int = 0
    unknown: int = 0

    def __add__(self, other: Stack) -> Stack:
        return Stack(*(a + b for a, b in zip(astuple(self), astuple(other), strict=True)))

    def __mul__(self, times: int) -> Stack:
        return Stack(*(a * times for a in astuple(self)))


UNKNOWN = Stack(unknown=1)


def stack_of(module: Module, *parts: ast.expr) -> Stack:
    """What these arguments of a Sequential add up to."""
    return sum((_part(module, part) for part in parts), Stack())


def _part(module: Module, node: ast.expr) -> Stack:
    match node:
        case ast.Starred(inner):
            return _part(module, inner)
        case ast.Call():
            return _layer(module, node)
        case ast.List(elts) | ast.Tuple(elts):
            return stack_of(module, *elts)
        case ast.BinOp(left, ast.Add(), right):
            return stack_of(module, left, right)
        case ast.BinOp(left, ast.Mult(), right):
            return _repeated(module, left, _number(module, right))
        case ast.ListComp() | ast.GeneratorExp():
            return _comprehension(module, node)
        case ast.Name():
            return _filled_list(module, node)
    return UNKNOWN


def _repeated(module: Module, part: ast.expr, times: int | None) -> Stack:
    return _part(module, part) * times if times is not None else UNKNOWN


def _layer(module: Module, call: ast.Call) -> Stack:
    name = module.resolve(call.func) or ""
    if name == "torch.nn.Sequential":
        return stack_of(module, *call.args)
    built = values_of(module).result(call)
    if isinstance(built, ast.List | ast.Tuple):
        return stack_of(module, *built.elts)  # `layers += block(100, 100)`
    activation = _of_activation(name)
    if activation is not None:
        return activation
    if _WEIGHTS.fullmatch(name):
        return Stack(weights=1)
    if "Norm" in name:
        return Stack(norms=1)
    plain = name.startswith("torch.nn.") and module_class(module, call.func) is None
    return Stack() if plain else UNKNOWN


def _of_activation(name: str | None) -> Stack | None:
    if name in _SIGMOID:
        return Stack(sigmoid=1)
    return Stack(tanh=1) if name in _TANH else None


def _comprehension(module: Module, node: ast.ListComp | ast.GeneratorExp) -> Stack:
    times = 1
    parts = [node.elt]
    for generator in node.generators:
        match generator.iter, node.elt, generator.target:
            case ((ast.Tuple(elts) | ast.List(elts)), ast.Name(element), ast.Name(target)):
                if element == target:
                    parts = elts
                    continue
        count = _range(module, generator.iter)
        if count is None or generator.ifs:
            return UNKNOWN
        times *= count
    return stack_of(module, *parts) * times


def _filled_list(module: Module, name: ast.Name) -> Stack:
    """A local list that is filled and then unpacked into Sequential."""
    scope = module.scope(name)
    total = Stack()
    bound = module.bindings(name.id, scope)
    for target in bound:
        up = module.statement(target)
        value = up.value if isinstance(up, ast.AugAssign) else values_of(module).bound_to(target)
        if not isinstance(value, ast.List | ast.ListComp | ast.BinOp | ast.Call):
            return UNKNOWN
        total += _part(module, value) * (_loop_times(module, up, scope) or 0)
    for call in module.method_calls("append", "extend", "insert"):
        match call:
            case ast.Call(ast.Attribute(ast.Name(holder)), [*_, added]) if holder == name.id:
                if module.scope(call) is scope:
                    total += _repeated(module, added, _loop_times(module, call, scope))
    return total if bound else UNKNOWN


def _loop_times(module: Module, node: ast.AST, scope: ast.AST | None) -> int | None:
    """How often the loops around a node run it, where their ranges are known."""
    times = 1
    for up in module.parents(node):
        if up is scope:
            break
        match up:
            case ast.For(iter=over):
                count = _range(module, over)
                if count is None:
                    return None
                times *= count
            case ast.While() | ast.If():
                return None
    return times


def _range(module: Module, node: ast.expr) -> int | None:
    match node:
        case ast.Call(ast.Name("range"), [_] | [_, _] as bounds):
            known = [b for a in bounds if (b := _number(module, a)) is not None]
            return max(0, known[-1] - sum(known[:-1])) if len(known) == len(bounds) else None
    return None


def _number(module: Module, node: ast.expr) -> int | None:
    """A whole number, also through plain arithmetic and through the default of a parameter."""
    found = module.number(node)
    if found is not None:
        return int(found)
    match node, module.scope(node):
        case ast.BinOp(a, ast.Add() | ast.Sub() as op, b), _:
            left, right = _number(module, a), _number(module, b)
            if left is None or right is None:
                return None
            return left + right if isinstance(op, ast.Add) else left - right
        case ast.Name(name), ast.FunctionDef(args=arguments):
            named = [*arguments.posonlyargs, *arguments.args]
            for arg, default in zip(reversed(named), reversed(arguments.defaults), strict=False):
                if arg.arg == name:
                    value = module.number(default)
                    return int(value) if value is not None else None
    return None


# -- forward passes --------------------------------------------------------------------------------------------


def forward_stacks(module: Module) -> list[tuple[ast.Call, Stack]]:
    """The chains that forwards write line by line or in a loop, each with its first activation.

    A forward with an addition or a concatenation is left out: it may carry the gradient past the layers.
    """
    found: dict[ast.FunctionDef, list[tuple[ast.Call, Stack]]] = {}
    for statement in module.all(ast.Assign):
        call = _activation_of_layer(statement)
        kind = _of_activation(_activation(module, call)) if call is not None else None
        if call is not None and kind is not None:
            match module.function(call):
                case ast.FunctionDef("forward") as forward:
                    found.setdefault(forward, []).append((call, kind))
    stacks = []
    for forward, chain in found.items():
        cls = module.class_(forward)
        if cls is not None and not _has_shortcut(forward):
            stack = Stack(norms=_norms(module, cls))
            for call, kind in chain:
                times = _times(module, cls, module.statement(call)) or 0
                stack += (kind + Stack(weights=1)) * times
            stacks.append((chain[0][0], stack))
    return stacks


def _activation_of_layer(statement: ast.Assign) -> ast.Call | None:
    """`x = act(layer(x))` or `x = layer(x).act()`: the activation call."""
    if statement.value.__class__ is not ast.Call:  # hot: most assignments end here
        return None
    match statement:
        case ast.Assign(
            [ast.Name(x), *_],
            ast.Call(_, [ast.Call(_, [ast.Name(fed)])])
            | ast.Call(ast.Attribute(ast.Call(_, [ast.Name(fed)])), []) as call,
        ) if fed == x:
            return call
    return None


def _activation(module: Module, call: ast.Call) -> str | None:
    """The name of what is called: a function, a method of the tensor, or a layer kept in `self`."""
    name = module.resolve(call.func)
    if name is not None or not isinstance(call.func, ast.Attribute):
        return name
    if not call.args:
        return f"torch.nn.functional.{call.func.attr}"
    cls = module.class_(call) if of_self(call.func) else None
    match module.attribute_values(cls, call.func.attr) if cls is not None else []:
        case [ast.Call(maker)]:
            return module.resolve(maker)
    return None


def _norms(module: Module, cls: ast.ClassDef) -> int:
    return sum("norm" in module.segment(n.func).lower() for n in below(cls, ast.Call))


def _times(module: Module, cls: ast.ClassDef, statement: ast.AST) -> int | None:
    """Once, or as often as a loop over `self.layers` of known length runs."""
    match module.enclosing(statement, ast.For, ast.If, ast.While, ast.FunctionDef):
        case ast.FunctionDef():
            return 1
        case ast.For(iter=ast.Attribute(ast.Name("self"), name)):
            match module.attribute_values(cls, name):
                case [ast.Call(maker, parts)] if module.resolve(maker) == "torch.nn.ModuleList":
                    stack = stack_of(module, *parts) + _appended(module, cls, name)
                    return stack.weights if not stack.unknown and not stack.norms else None
    return None


def _appended(module: Module, cls: ast.ClassDef, name: str) -> Stack:
    """What `self.<name>.append(...)` adds, as often as the loops around it run."""
    total = Stack()
    for call in module.method_calls("append"):
        match call:
            case ast.Call(ast.Attribute(ast.Attribute(attr=holder)), [added, *_]):
                if holder == name and module.class_(call) is cls:
                    times = _loop_times(module, call, module.scope(call))
                    total += _repeated(module, added, times)
    return total


def _has_shortcut(forward: ast.FunctionDef) -> bool:
    """An addition or a concatenation may carry the gradient past the layers."""
    for node in ast.walk(forward):
        match node:
            case ast.BinOp(op=ast.Add()) | ast.AugAssign(op=ast.Add()):
                return True
            case ast.Call(ast.Attribute(attr="cat" | "concat" | "add" | "stack")):
                return True
    return False
