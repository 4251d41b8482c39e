"""Moving one statement to where it belongs: what the fixes about order share.

A move is certain only when both statements stand alone on their lines in the same file, and nothing that the moved
one reads or writes changes on the way.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable

from fallline.finding import Edit, Finding, Fix
from fallline.location import Location
from fallline.syntax import Editor, Module
from fallline.syntax.nodes import below, names_bound, names_read

__all__ = ["lone_statement", "move_to", "moved_before_step", "stepped", "steps_once", "way_in"]


def lone_statement(module: Module, at: Location | None) -> ast.stmt | None:
    """The simple statement at this place, when it has its lines to itself and is in this file."""
    if at is None or at.path != module.path:
        return None
    editor = Editor(module)
    found = editor.statement_at(at.line)
    simple = isinstance(found, ast.Expr | ast.Assign | ast.AugAssign | ast.AnnAssign)
    return found if found is not None and simple and editor.alone(found) else None


def stepped(statement: ast.stmt | None) -> ast.expr | None:
    """The optimizer in `optimizer.step()` or `scaler.step(optimizer)`, when it is a plain name or attribute."""
    if not isinstance(statement, ast.Expr) or not isinstance(statement.value, ast.Call):
        return None
    return _optimizer(statement.value)


def steps_once(block: list[ast.stmt], step: ast.stmt) -> bool:
    """Whether this is the only step of its optimizer in a block: no second branch that steps it another way."""
    optimizer = stepped(step)
    if optimizer is None:
        return False
    calls = (n for s in block for n in below(s, ast.Call))
    found = [c for c in calls if (o := _optimizer(c)) and ast.dump(o) == ast.dump(optimizer)]
    return len(found) == 1


def way_in(module: Module, block: list[ast.stmt], inner: ast.stmt) -> ast.stmt | None:
    """The statement of `block` that is or contains `inner`, reached through nothing but with and if without else."""
    here: ast.AST | None = inner
    while here is not None:
        if isinstance(here, ast.stmt) and here in block:
            return here
        here = module.parent(here)
        if isinstance(here, ast.If) and here.orelse:
            return None
        if not isinstance(here, ast.If | ast.With):
            return None
    return None


def move_to(
    module: Module, statement: ast.stmt, step: ast.stmt, *, before: bool
) -> tuple[Edit, ...] | None:
    """Edits that put a statement right before or after a step in its own block, or in an if or with there."""
    editor = Editor(module)
    block = editor.block_of(statement)
    around = way_in(module, block, step)
    if around is None or around is statement or not steps_once(block, step):
        return None
    first, last = sorted((block.index(statement), block.index(around)))
    passed = [s for s in block[first : last + 1] if s is not statement]
    if not _independent(statement, passed):
        return None
    move = editor.move_before if before else editor.move_after
    return move(statement, step)


def moved_before_step(module: Module, finding: Finding, title: str) -> Fix | None:
    """The fix that puts the statement of a finding right before its step."""
    statement = lone_statement(module, finding.at)
    step = lone_statement(module, finding.related.get("step"))
    if statement is None or step is None:
        return None
    edits = move_to(module, statement, step, before=True)
    return Fix(title, edits) if edits else None


def _optimizer(call: ast.Call) -> ast.expr | None:
    if not isinstance(call.func, ast.Attribute) or call.func.attr != "step" or call.keywords:
        return None
    found = call.args[0] if call.args else call.func.value
    return found if isinstance(found, ast.Name | ast.Attribute) else None


def _reads(node: ast.AST) -> set[str]:
    return {n.id for n in names_read(node)}


def _writes(node: ast.AST) -> set[str]:
    return {n.id for n in names_bound(node)}


def _independent(statement: ast.stmt, passed: Iterable[ast.stmt]) -> bool:
    """Whether moving a statement past others leaves every name as it was."""
    mine_read, mine_written = _reads(statement), _writes(statement)
    return all(
        mine_written.isdisjoint(_reads(other) | _writes(other))
        and mine_read.isdisjoint(_writes(other))
        for other in passed
    )
