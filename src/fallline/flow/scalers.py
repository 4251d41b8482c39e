"""Loss scalers that are updated beside a step that does not go through them, in code whose loop is not in view."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from fallline.syntax import Module
from fallline.syntax.nodes import below, written

__all__ = ["stepped_past"]

_SCALER = re.compile(r"(?i)scaler")
_OPTIMIZER = re.compile(r"(?i)(^|[._])opt(im\w*)?(_\w+)?$")
# The skip is made by hand.
_BY_HAND = re.compile(r"(?i)isfinite|isnan|isinf|found_inf|overflow|has_inf|nan_to_num")


def stepped_past(module: Module) -> Iterator[tuple[ast.Call, str]]:
    """`optimizer.step()` and `scaler.update()` in one block, where that scaler never steps: the step, and the scaler."""
    for update in module.method_calls("update"):
        statement = module.statement(update)
        if update.args or update.keywords or not isinstance(statement, ast.Expr):
            continue
        assert isinstance(update.func, ast.Attribute)
        scaler = written(update.func.value)
        if not _SCALER.search(scaler.rpartition(".")[2]) or not _scales(module, update, scaler):
            continue
        before = _before(module, statement)
        step = next((c for s in before if (c := _steps(s)) is not None), None)
        if step is None or any(_goes_through(s, scaler) for s in before):
            continue
        function = module.function(update)
        if function is None or not _BY_HAND.search(module.segment(function)):
            yield step, scaler


def _scales(module: Module, update: ast.Call, scaler: str) -> bool:
    """The same scaler scales a loss, or its gradients are unscaled: in this class, or in this file."""
    around = module.class_(update) or module.tree
    return any(
        isinstance(c.func, ast.Attribute)
        and c.func.attr in {"scale", "unscale_"}
        and written(c.func.value) == scaler
        for c in below(around, ast.Call)
    )


def _before(module: Module, statement: ast.stmt) -> list[ast.stmt]:
    """The statements of the same block before this one, the nearest first, up to a backward."""
    up = module.parent(statement)
    for name in ("body", "orelse", "finalbody"):
        block = getattr(up, name, [])
        if isinstance(block, list) and statement in block:
            found = []
            for one in reversed(block[: block.index(statement)]):
                if any(
                    isinstance(c.func, ast.Attribute) and c.func.attr == "backward"
                    for c in below(one, ast.Call)
                ):
                    break
                found.append(one)
            return found
    return []


def _steps(statement: ast.stmt) -> ast.Call | None:
    match statement:
        case ast.Expr(ast.Call(ast.Attribute(of, "step"), [], []) as call):
            return call if _OPTIMIZER.search(written(of)) else None
    return None


def _goes_through(statement: ast.stmt, scaler: str) -> bool:
    return any(
        isinstance(c.func, ast.Attribute)
        and c.func.attr == "step"
        and written(c.func.value) == scaler
        for c in below(statement, ast.Call)
    )
