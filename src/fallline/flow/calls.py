"""How an operation is written: `torch.log(x)`, `x.log()` and `log(x)` are one; so are `x ** 2` and `torch.square(x)`."""

from __future__ import annotations

import ast
from collections.abc import Container, Iterator

from fallline.syntax import Module
from fallline.syntax.nodes import below

__all__ = [
    "chained_on",
    "last_name",
    "names_in",
    "of_self",
    "operand",
    "operations",
    "receiver",
    "returned",
    "same",
    "squared_base",
]


def last_name(node: ast.AST) -> str:
    """`log` for `torch.log(x)`, `x.log()`, `log(x)`, and for what is called alone."""
    named = node.func if isinstance(node, ast.Call) else node  # hot: no match here
    if isinstance(named, ast.Attribute):
        return named.attr
    return named.id if isinstance(named, ast.Name) else ""


def chained_on(node: ast.expr, methods: Container[str] | None = None) -> ast.expr:
    """`x` of `x.cpu().mean()`: what a chain of method calls begins with; with `methods`, of these alone."""
    while True:
        match node:
            case ast.Call(ast.Attribute(inner, method)) if methods is None or method in methods:
                node = inner
            case _:
                return node


def of_self(node: ast.AST | None) -> str | None:
    """`x` of `self.x`."""
    if not isinstance(node, ast.Attribute):  # hot: no match here
        return None
    return node.attr if isinstance(node.value, ast.Name) and node.value.id == "self" else None


def names_in(*nodes: ast.AST) -> set[str]:
    """The plain names that are written in these."""
    return {n.id for node in nodes for n in below(node, ast.Name)}


def returned(module: Module, function: ast.AST) -> list[ast.expr]:
    """What the return statements of this function give."""
    return [
        r.value
        for r in below(function, ast.Return)
        if r.value is not None and module.function(r) is function
    ]


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
    if name is None:
        return call.func.value if isinstance(call.func, ast.Attribute) else None
    return module.argument(call, 0, "input", "self", "x") if name.startswith("torch.") else None


def operand(module: Module, call: ast.Call, *keywords: str, place: int = 0) -> ast.expr | None:
    """An argument besides the tensor: `y` of `x.div(y)` and of `torch.div(x, y)`."""
    return module.argument(call, place + (module.resolve(call.func) is not None), *keywords)


def squared_base(module: Module, of: ast.AST) -> ast.expr | None:
    """`x` where this is written `x ** 2`, `x * x`, `x.pow(2)`, `torch.square(x)`."""
    match of:
        case ast.BinOp(base, ast.Pow(), power) if module.number(power) == 2:
            return base
        case ast.BinOp(base, ast.Mult(), other) if same(base, other):
            return base
        case ast.Call() if last_name(of) == "square" or (
            last_name(of) == "pow" and module.number(operand(module, of, "exponent")) == 2
        ):
            return receiver(module, of)
    return None


def same(a: ast.AST, b: ast.AST) -> bool:
    """Whether two expressions are written alike. Not by ast.dump, which recurses and reads both to the end."""
    pairs: list[tuple[object, object]] = [(a, b)]
    while pairs:
        match pairs.pop():
            case (left, right) if left.__class__ is not right.__class__:
                return False
            case (ast.AST() as left, right):
                fields = [f for f in left._fields if f != "ctx"]
                pairs += [(getattr(left, f, None), getattr(right, f, None)) for f in fields]
            case (list() as left, list() as right):
                if len(left) != len(right):
                    return False
                pairs += zip(left, right, strict=True)
            case (left, right) if left != right:
                return False
    return True
