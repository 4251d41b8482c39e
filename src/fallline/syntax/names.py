"""Names that mean the same thing, and constants that expressions stand for."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fallline.syntax.module import Module

__all__ = ["SAME", "UNKNOWN", "constant_of"]

UNKNOWN: Any = object()
_DEEPEST = 12  # how far arithmetic is followed

# The habits of `import torch.nn.functional as F` are followed through imports, never assumed.
# These are other public names of the same thing.
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

_ARITHMETIC: dict[type, Any] = {
    ast.Add: lambda a, b: a + b,
    ast.Sub: lambda a, b: a - b,
    ast.Mult: lambda a, b: a * b,
    ast.Div: lambda a, b: a / b,
    ast.FloorDiv: lambda a, b: a // b,
    ast.Mod: lambda a, b: a % b,
    ast.Pow: lambda a, b: a**b if abs(b) < 64 and abs(a) < 1e6 else float("nan"),
}


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
            try:
                return _ARITHMETIC[here.op.__class__](left, right)
            except (KeyError, ArithmeticError):
                return UNKNOWN
    if (
        isinstance(here, ast.Call)
        and isinstance(here.func, ast.Name)
        and here.func.id == "float"
        and here.args
    ):
        try:
            return float(constant_of(module, here.args[0], depth + 1))
        except (TypeError, ValueError):
            return UNKNOWN
    if module.resolve(here) in {"math.inf", "torch.inf", "numpy.inf"}:
        return float("inf")
    return UNKNOWN
