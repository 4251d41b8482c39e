"""Files that only an old torch can run."""

from __future__ import annotations

import ast

from fallline.syntax.module import Module

__all__ = ["volatile_works"]

# Names that came with torch 0.4, in which `volatile` no longer does anything.
_SINCE = ("detect_anomaly", "torch.no_grad", "torch.set_grad_enabled", "torch.device(", ".item()")


def volatile_works(module: Module) -> bool:
    """Written for torch 0.3: `volatile=True` stops autograd there, and `loss.data[0]` fails wherever it no longer does."""
    kept = module.notes("volatile works")
    known: bool | None = kept.get(module.tree)
    if known is None:
        text = module.source.text
        old = "volatile=True" in text and not any(name in text for name in _SINCE)
        known = kept[module.tree] = old and any(map(_first_of_a_scalar, module.all(ast.Subscript)))
    return known


def _first_of_a_scalar(node: ast.Subscript) -> bool:
    """`loss.data[0]`, `criterion(output, y).data[0]`."""
    match node:
        case ast.Subscript(ast.Attribute(of, "data"), ast.Constant(0)):
            named = ast.unparse(of.func if isinstance(of, ast.Call) else of).lower()
            return "loss" in named or "criterion" in named
    return False
