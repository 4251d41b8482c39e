"""Whether an expression is known to be in half precision. What is not known is not half."""

from __future__ import annotations

import ast

from fallline.syntax import Module
from fallline.syntax.nodes import below, methods_of

__all__ = [
    "FLOAT16",
    "KEEPS",
    "LOW",
    "autocast_around",
    "is_layer",
    "is_low",
    "is_off",
    "is_widened",
]

FLOAT16 = frozenset({"torch.float16", "torch.half", "torch.HalfTensor", "torch.cuda.HalfTensor"})
LOW = FLOAT16 | {"torch.bfloat16"}
_CAST = {"half": "torch.float16", "bfloat16": "torch.bfloat16"}
_WIDE = frozenset({"torch.float32", "torch.float", "torch.float64", "torch.double"})
# Results have the type of their first argument.
KEEPS = frozenset(
    "sigmoid relu tanh abs sum mean var std exp log sqrt softmax log_softmax view reshape t transpose permute squeeze unsqueeze contiguous clone"
    " detach flatten expand masked_fill max min amax amin norm pow square gather index_select div mul add sub clamp cuda to cpu eval train"
    " requires_grad_".split()
)
# These run in float32 under CUDA autocast, whatever goes in (ATen/autocast_mode.h).
_WIDENED_ON_CUDA = frozenset(
    "exp log sum softmax log_softmax norm pow prod cumsum cross_entropy nll_loss mse_loss layer_norm".split()
)
# These, and the layers made of them, run in half precision under autocast.
_NARROWED = frozenset(
    f"torch.{n}" for n in ("matmul", "mm", "bmm", "einsum", "addmm", "baddbmm")
) | frozenset(f"torch.nn.functional.{n}" for n in ("linear", "conv1d", "conv2d", "conv3d"))
_LAYERS = frozenset(
    f"torch.nn.{n}" for n in ("Linear", "Conv1d", "Conv2d", "Conv3d", "ConvTranspose2d")
)
_AUTOCAST = {
    "torch.autocast": "",
    "torch.amp.autocast": "",
    "torch.cuda.amp.autocast": "cuda",
    "torch.cpu.amp.autocast": "cpu",
}


def is_low(module: Module, node: ast.expr, types: frozenset[str] = FLOAT16, depth: int = 8) -> bool:
    """The value of this expression is known to have one of these types."""
    if depth == 0:
        return False
    here = last_value(module, node)
    match here:
        case ast.Subscript(inner) | ast.UnaryOp(operand=inner):
            return is_low(module, inner, types, depth - 1)
        case ast.BinOp(op=ast.MatMult()) if _region(module, here, types) is not None:
            return True
        case ast.BinOp(left, _, right):
            sides = [
                is_low(module, side, types, depth - 1) or module.number(side) is not None
                for side in (left, right)
            ]
            return all(sides) and module.number(here) is None
        case ast.Call():
            return _call_is_low(module, here, types, depth - 1)
    return False


def _call_is_low(module: Module, call: ast.Call, types: frozenset[str], depth: int) -> bool:
    name = module.resolve(call.func)
    region = _region(module, call, types)
    told = module.argument(call, None, "dtype")
    if told is not None:
        return module.resolve(module.value(told)) in types
    if region is not None and (name in _NARROWED or is_layer(module, call.func)):
        return True
    if call.args and _was_cast(module, call.func, types):
        return is_low(module, call.args[0], types, depth)
    match call:
        case ast.Call(ast.Attribute(subject, method)) if name is None:
            if method in _CAST:
                return _CAST[method] in types
            if method in {"to", "type"}:
                named = {module.resolve(module.value(a)) for a in call.args}
                if named & (LOW | _WIDE):
                    return bool(named & types)
            if region is not None and method in {"matmul", "mm", "bmm"}:
                return True
        case ast.Call(args=[subject, *_]) if name is not None and name.startswith("torch."):
            method = name.rpartition(".")[2]
        case _:
            return False
    if method not in KEEPS or (region == "cuda" and method in _WIDENED_ON_CUDA):
        return False
    return is_low(module, subject, types, depth)


def _was_cast(module: Module, called: ast.expr, types: frozenset[str]) -> bool:
    """`encoder` after `encoder = encoder.cuda().half()`: what is half goes through it as half."""
    bound = module.bindings(called.id, module.scope(called)) if isinstance(called, ast.Name) else []
    if isinstance(called, ast.Name) and not bound:
        bound = module.bindings(called.id, None)
    ups = [module.parent(b) for b in bound]
    casts = [c for up in ups if isinstance(up, ast.Assign) for c in below(up.value, ast.Call)]
    return any(
        isinstance(c.func, ast.Attribute) and _CAST.get(c.func.attr, "") in types for c in casts
    )


def is_widened(module: Module, node: ast.AST | None) -> bool:
    """`x.float()`, `x.to(torch.float32)`, `x.double()`: a cast out of half precision."""
    match node:
        case ast.Call(ast.Attribute(attr="float" | "double")):
            return True
        case ast.Call(ast.Attribute(attr="to" | "type")):
            given = [*node.args, *(k.value for k in node.keywords)]
            return any(module.resolve(module.value(a)) in _WIDE for a in given)
    return False


def autocast_around(module: Module, node: ast.AST) -> ast.Call | None:
    """The innermost `with autocast(...)` around this node, in its own function."""
    scope = module.scope(node)
    inner: ast.AST = node
    for up in module.parents(node):
        if up is scope:
            return None
        if isinstance(up, ast.With) and not isinstance(inner, ast.withitem):
            for item in reversed(up.items):
                call = item.context_expr
                if isinstance(call, ast.Call) and module.resolve(call.func) in _AUTOCAST:
                    return call
        inner = up
    return None


def is_off(module: Module, node: ast.AST) -> bool:
    """`autocast(..., enabled=False)`."""
    if not isinstance(node, ast.Call) or module.resolve(node.func) not in _AUTOCAST:
        return False
    return module.constant(_enabled(module, node)) is False


def _enabled(module: Module, call: ast.Call) -> ast.expr | None:
    fixed = _AUTOCAST[module.resolve(call.func) or ""]
    return module.argument(call, 0 if fixed else 2, "enabled")


def _region(module: Module, node: ast.AST, types: frozenset[str]) -> str | None:
    """The device where this node runs under autocast to one of these types, known to be on."""
    call = autocast_around(module, node)
    if call is None or module.has_star(call):
        return None
    enabled = _enabled(module, call)
    if enabled is not None and module.constant(enabled) is not True:
        return None
    device = _AUTOCAST[module.resolve(call.func) or ""] or module.constant(
        module.argument(call, 0, "device_type")
    )
    dtype = module.argument(call, 1, "dtype")
    if dtype is not None:
        known = module.resolve(module.value(dtype)) in types
    else:
        known = device == "cuda" or (device == "cpu" and "torch.bfloat16" in types)
    return (device if isinstance(device, str) else "unknown") if known else None


def is_layer(module: Module, called: ast.expr) -> bool:
    """What is called is a layer that runs in half precision under autocast, or a stack that ends with one."""
    match called:
        case ast.Name():
            return _makes_layer(module, module.value(called))
        case ast.Attribute(ast.Name("self"), name):
            return _holds_layer(module, module.class_(called), name)
    return False


def _holds_layer(module: Module, cls: ast.ClassDef | None, name: str, depth: int = 3) -> bool:
    values = module.attribute_values(cls, name) if cls is not None else []
    return len(values) == 1 and _makes_layer(module, values[0], depth)


def _makes_layer(module: Module, made: ast.expr, depth: int = 3) -> bool:
    name = module.resolve(made.func) if isinstance(made, ast.Call) else None
    match made:
        case ast.Call(ast.Name(maker)) if maker in module.classes:
            return depth > 0 and _ends_with_layer(module, module.classes[maker], depth - 1)
        case ast.Call(args=[*_, ast.Call() as last]) if name == "torch.nn.Sequential":
            return _makes_layer(module, last, depth)
        case ast.Call(ast.Attribute(ast.Call() as inner, "to" | "cuda")) if name is None:
            return _makes_layer(module, inner, depth)
    return name in _LAYERS


def _ends_with_layer(module: Module, cls: ast.ClassDef, depth: int) -> bool:
    """The forward pass of this class returns what one of its layers gives."""
    forward = next((n for n in methods_of(cls) if n.name == "forward"), None)
    match [n.value for n in below(forward, ast.Return)] if forward else []:
        case [ast.Call(ast.Attribute(ast.Name("self"), name))]:
            return _holds_layer(module, cls, name, depth)
    return False


def last_value(module: Module, node: ast.expr) -> ast.expr:
    """What a name was last assigned before this place, in the same block or one around it."""
    if not isinstance(node, ast.Name):
        return node
    line = module.statement(node).lineno
    bound = module.bindings(node.id, module.scope(node)) or module.bindings(node.id, None)
    before = [b for b in bound if isinstance(b, ast.Name) and b.lineno < line]
    if any(isinstance(module.parent(b), ast.AugAssign) for b in before):
        return node
    match module.parent(before[-1]) if before else None:
        case ast.Assign([target], value) as up if target is before[-1]:
            # an assignment in another branch may not have happened; in a `with` it has
            home = module.parent(up)
            while isinstance(home, ast.With):
                home = module.parent(home)
            return value if any(home is p for p in module.parents(node)) else node
    return node
