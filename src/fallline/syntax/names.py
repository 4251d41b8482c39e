"""Names that mean the same thing, and constants that expressions stand for."""

from __future__ import annotations

import ast
import operator
import re
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fallline.syntax.module import Module

__all__ = ["HABITS", "SAME", "UNKNOWN", "computed", "constant_of"]

UNKNOWN: Any = object()
_DEEPEST = 12  # how far arithmetic is followed

# What people call things of torch: presumed of names that nothing in the text defines, as in a fragment.
HABITS = {
    "torch": "torch",
    "nn": "torch.nn",
    "F": "torch.nn.functional",
    "optim": "torch.optim",
    "np": "numpy",
    "Variable": "torch.autograd.Variable",
    "autocast": "torch.amp.autocast",
    "GradScaler": "torch.amp.GradScaler",
    "clip_grad_norm_": "torch.nn.utils.clip_grad_norm_",
    "DDP": "torch.nn.parallel.DistributedDataParallel",
    "DistributedDataParallel": "torch.nn.parallel.DistributedDataParallel",
    "DataLoader": "torch.utils.data.DataLoader",
    "DistributedSampler": "torch.utils.data.DistributedSampler",
    "Accelerator": "accelerate.Accelerator",
}

# Other public names of the same thing.
SAME = {
    "torch.amp.grad_scaler.GradScaler": "torch.amp.GradScaler",
    "torch.nn.utils.clip_grad.clip_grad_norm_": "torch.nn.utils.clip_grad_norm_",
    "torch.nn.utils.clip_grad.clip_grad_value_": "torch.nn.utils.clip_grad_value_",
    "torch.nn.parallel.distributed.DistributedDataParallel": "torch.nn.parallel.DistributedDataParallel",
    "torch.utils.data.dataloader.DataLoader": "torch.utils.data.DataLoader",
    "torch.utils.data.distributed.DistributedSampler": "torch.utils.data.DistributedSampler",
    "torch.special.log_softmax": "torch.nn.functional.log_softmax",
    "torch.special.softmax": "torch.nn.functional.softmax",
    "torch.softmax": "torch.nn.functional.softmax",
    "torch.log_softmax": "torch.nn.functional.log_softmax",
    "torch.sigmoid": "torch.nn.functional.sigmoid",
    "torch.tanh": "torch.nn.functional.tanh",
    "torch.dropout": "torch.nn.functional.dropout",
    "torch.nn.modules.module.Module": "torch.nn.Module",
    "torch.autograd.function.Function": "torch.autograd.Function",
}

_ARITHMETIC: dict[type, Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
    ast.BitAnd: operator.and_,
    ast.BitOr: operator.or_,
}
_MOST_BITS = 512
_LONGEST_TEXT = 4_096
_WIDE_FORMAT = re.compile(r"%[^a-zA-Z]*(\*|\d{3})")


def computed(op: ast.operator, left: Any, right: Any) -> Any:
    """Arithmetic with two constants, or UNKNOWN: also where the result would be too large to be worth knowing."""
    do = _ARITHMETIC.get(op.__class__)
    if do is None or not _within_bounds(op, left, right):
        return UNKNOWN
    try:
        return do(left, right)
    except (TypeError, ArithmeticError, ValueError):
        return UNKNOWN


def _within_bounds(op: ast.operator, left: Any, right: Any) -> bool:
    match op, left, right:
        case ast.Mult(), int(), int():
            return left.bit_length() + right.bit_length() <= _MOST_BITS
        case ast.Mult(), str() | bytes(), int():
            return len(left) * right <= _LONGEST_TEXT
        case ast.Mult(), int(), str() | bytes():
            return len(right) * left <= _LONGEST_TEXT
        case ast.Add(), str() | bytes(), str() | bytes():
            return len(left) + len(right) <= _LONGEST_TEXT
        case ast.Mod(), str(), _:
            return len(left) <= _LONGEST_TEXT and _WIDE_FORMAT.search(left) is None
        case ast.Mod(), bytes(), _:
            return False
    return True


def constant_of(module: Module, node: ast.expr | None, depth: int = 0) -> Any:
    """The constant an expression stands for, or UNKNOWN."""
    if node is None or depth > _DEEPEST:  # `size = size * 2` stands for itself
        return UNKNOWN
    here = module.value(node)
    if isinstance(here, ast.Constant):
        return here.value
    if isinstance(here, ast.UnaryOp) and isinstance(here.op, ast.USub):
        inner = constant_of(module, here.operand, depth + 1)
        return -inner if isinstance(inner, int | float) else UNKNOWN
    if isinstance(here, ast.BinOp):
        left = constant_of(module, here.left, depth + 1)
        right = constant_of(module, here.right, depth + 1)
        if isinstance(left, int | float) and isinstance(right, int | float):
            if isinstance(here.op, ast.Pow):
                return _power(left, right)
            return computed(here.op, left, right)
    if (
        isinstance(here, ast.Call)
        and isinstance(here.func, ast.Name)
        and here.func.id == "float"
        and here.args
    ):
        try:
            return float(constant_of(module, here.args[0], depth + 1))
        except (TypeError, ValueError, OverflowError):
            return UNKNOWN
    if isinstance(here, ast.Attribute) and isinstance(here.value, ast.Name):
        fixed = _class_attribute(module, here, here.value.id)
        return constant_of(module, fixed, depth + 1) if fixed is not None else _named(module, here)
    return _named(module, here)


def _named(module: Module, here: ast.expr) -> Any:
    if module.resolve(here) in {"math.inf", "torch.inf", "numpy.inf"}:
        return float("inf")
    return UNKNOWN


def _class_attribute(module: Module, node: ast.Attribute, owner: str) -> ast.expr | None:
    """What `self.limit` or `Config.limit` is, of a class that writes `limit = 0.5` in its body, in a file where nothing else sets an attribute of that name."""
    cls = module.class_(node) if owner in {"self", "cls"} else module.classes.get(owner)
    found: list[ast.expr] = []
    for statement in cls.body if cls is not None else ():
        match statement:
            case ast.Assign([ast.Name(name)], value) | ast.AnnAssign(
                ast.Name(name), value=ast.expr() as value
            ) if name == node.attr:
                found.append(value)
    return found[0] if len(found) == 1 and node.attr not in _set_attributes(module) else None


def _set_attributes(module: Module) -> set[str]:
    """The names of the attributes that this file sets."""
    known = module.notes("attributes that are set")
    if "all" not in known:
        known["all"] = {n.attr for n in module.all(ast.Attribute) if isinstance(n.ctx, ast.Store)}
    names: set[str] = known["all"]
    return names


def _power(base: float, exponent: float) -> Any:
    if abs(exponent) >= 64 or abs(base) >= 1e6:
        return float("nan")
    try:
        return base**exponent
    except ArithmeticError:
        return UNKNOWN
