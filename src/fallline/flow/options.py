"""What an option of a program is when nobody sets it: `--accumulation-steps` of its parser, a field of its configuration class."""

from __future__ import annotations

import ast

from fallline.syntax import Module

__all__ = ["default_of"]


def default_of(module: Module, name: str) -> float | None:
    """The number that an option of this name has by default in this file; None where no such option, or no number, is seen."""
    return _defaults(module).get(name)


def _defaults(module: Module) -> dict[str, float]:
    kept = module.notes("option defaults")
    known: dict[str, float] | None = kept.get(module.tree)
    if known is None:
        known = kept[module.tree] = {}
        for call in module.method_calls("add_argument"):
            number = _number(
                module, next((k.value for k in call.keywords if k.arg == "default"), None)
            )
            if number is not None:
                known |= dict.fromkeys(_names(call), number)
        for field in module.all(ast.AnnAssign):
            number = _number(module, field.value)
            if isinstance(field.target, ast.Name) and number is not None:
                if isinstance(module.parent(field), ast.ClassDef):
                    known[field.target.id] = number
    return known


def _names(call: ast.Call) -> list[str]:
    """`args.grad_accum` of `add_argument("-g", "--grad-accum")`."""
    given = [a.value for a in call.args if isinstance(a, ast.Constant)]
    given += [
        k.value.value
        for k in call.keywords
        if k.arg == "dest" and isinstance(k.value, ast.Constant)
    ]
    return [n.lstrip("-").replace("-", "_") for n in given if isinstance(n, str)]


def _number(module: Module, value: ast.expr | None) -> float | None:
    match value:
        case ast.Call(func=ast.Name("field" | "Field"), keywords=keywords):
            return _number(module, next((k.value for k in keywords if k.arg == "default"), None))
        case None:
            return None
    return module.number(value)
