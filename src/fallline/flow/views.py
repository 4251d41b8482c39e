"""Views of an input: what a contrastive or denoising learner makes of its data, several times over, in order to compare the answers."""

from __future__ import annotations

import ast
import re

from fallline.flow.calls import last_name
from fallline.syntax import Module
from fallline.syntax.nodes import below, is_name, written

__all__ = ["is_a_view"]

_NAMED = re.compile(r"(?i)aug|(^|_)views?\d*($|_)|corrupt|nois[ey]|perturb|masked")
_COMPARED_IN = re.compile(r"(?i)contrast|(^|_)(loss|views?|ssl|self_?sup\w*)($|_)")


def is_a_view(module: Module, made: ast.Call) -> bool:
    """Whether a call makes a view of an input of its function: by its name, in a loss, or beside another pass of one network over the same input."""
    function = module.function(made)
    if not isinstance(function, ast.FunctionDef) or not made.args:
        return False
    given = made.args[0]
    root = given.value if isinstance(given, ast.Attribute) else given
    arguments = {a.arg for a in below(function.args, ast.arg)} - {"self"}
    if not isinstance(root, ast.Name) or root.id not in arguments:
        return False
    statement = module.statement(made)
    targets = _targets(statement) if statement is not None else set()
    if targets & {written(given)}:
        return False  # `x = dropout(x)`: the layer before the next one
    if any(_NAMED.search(t) for t in targets) or _COMPARED_IN.search(function.name):
        return True
    passes = _passes(module, function, made, targets)
    others = _others(module, function, made, written(given))
    return any(passes & other for other in others)


def _targets(statement: ast.stmt) -> set[str]:
    match statement:
        case ast.Assign(targets=targets):
            return {written(n) for t in targets for n in (t, *below(t, ast.Name))}
    return set()


def _others(
    module: Module, function: ast.FunctionDef, made: ast.Call, given: str
) -> list[set[str]]:
    """What runs over the same input otherwise: as it is, or as another view of the same kind."""
    found: list[set[str]] = []
    for call in below(function, ast.Call):
        if call is made or not any(written(a) == given for a in call.args):
            continue
        if last_name(call) == last_name(made):
            statement = module.statement(call)
            targets = _targets(statement) if statement is not None else set()
            found.append(_passes(module, function, call, targets - {given}))
        else:
            found.append({written(call.func)})
    return found


def _passes(
    module: Module, function: ast.FunctionDef, made: ast.Call, targets: set[str]
) -> set[str]:
    """The networks of this module that a value is given to, at once or by its name."""
    around = [up for up in module.parents(made) if isinstance(up, ast.Call)]
    by_name = [
        call
        for call in below(function, ast.Call)
        if any(n.id in targets for a in call.args for n in below(a, ast.Name))
    ]
    return {written(c.func) for c in (*around, *by_name) if _of_module(c.func)}


def _of_module(func: ast.expr) -> bool:
    """`self.encoder`, `self(...)`, `self.encoder.body`."""
    while isinstance(func, ast.Attribute):
        func = func.value
    return is_name(func, "self")
