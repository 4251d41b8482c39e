"""Moving one statement to where it belongs: what the fixes about order share.

A move is certain only when both statements stand alone on their lines in the same file, and nothing that the moved
one reads or writes changes on the way.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable

from fallline.event import Location
from fallline.finding import Edit
from fallline.syntax import Editor, Module

__all__ = ["ancestor_in", "lone_statement", "move_down", "move_up", "reads", "writes"]


def lone_statement(module: Module, at: Location | None) -> ast.stmt | None:
    """The simple statement at this place, when it has its lines to itself and is in this file."""
    if at is None or at.path != module.path:
        return None
    editor = Editor(module)
    found = editor.statement_at(at.line)
    simple = isinstance(found, ast.Expr | ast.Assign | ast.AugAssign | ast.AnnAssign)
    return found if found is not None and simple and editor.alone(found) else None


def ancestor_in(module: Module, block: list[ast.stmt], inner: ast.stmt) -> ast.stmt | None:
    """The statement of `block` that is or contains `inner`, reached through nothing but if and with."""
    here: ast.AST | None = inner
    while here is not None:
        if isinstance(here, ast.stmt) and here in block:
            return here
        here = module.parent(here)
        if not isinstance(here, ast.If | ast.With):
            return None
    return None


def move_up(module: Module, statement: ast.stmt, anchor: ast.stmt) -> tuple[Edit, ...] | None:
    """Edits that put a statement before an earlier one of the same block."""
    editor = Editor(module)
    block = editor.block_of(anchor)
    if statement not in block or block.index(statement) < block.index(anchor):
        return None
    passed = block[block.index(anchor) : block.index(statement)]
    return editor.move_before(statement, anchor) if _independent(statement, passed) else None


def move_down(
    module: Module, statement: ast.stmt, anchor: ast.stmt, *, before: bool = False
) -> tuple[Edit, ...] | None:
    """Edits that put a statement after (or right before) a later one, in its block or in an if or with there."""
    editor = Editor(module)
    block = editor.block_of(statement)
    around = ancestor_in(module, block, anchor)
    if around is None or block.index(around) <= block.index(statement):
        return None
    if not _independent(statement, block[block.index(statement) + 1 : block.index(around) + 1]):
        return None
    move = editor.move_before if before else editor.move_after
    return move(statement, anchor)


def reads(node: ast.AST) -> set[str]:
    """The plain names a piece of code reads."""
    return {n.id for n in ast.walk(node) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Load)}


def writes(node: ast.AST) -> set[str]:
    """The plain names a piece of code binds."""
    return {
        n.id for n in ast.walk(node) if isinstance(n, ast.Name) and not isinstance(n.ctx, ast.Load)
    }


def _independent(statement: ast.stmt, passed: Iterable[ast.stmt]) -> bool:
    """Whether moving a statement past others leaves every name as it was."""
    mine_read, mine_written = reads(statement), writes(statement)
    return all(
        mine_written.isdisjoint(reads(other) | writes(other))
        and mine_read.isdisjoint(writes(other))
        for other in passed
    )
