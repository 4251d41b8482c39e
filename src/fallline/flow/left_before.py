"""What leaves a block before a statement of it is reached: `if not self.training: return x`."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from fallline.flow.calls import last_name
from fallline.flow.values import siblings_before

__all__ = ["tests_left_at"]


def tests_left_at(block: ast.AST, statement: ast.stmt) -> Iterator[ast.expr]:
    """The tests, among the statements of the block before this one, after which it is not reached: where they hold, or of assertions where they do not."""
    for earlier in siblings_before(block, statement):
        match earlier:
            case ast.Assert(test):
                yield test
            case ast.If(test, [*_, last]) if _leaves(last):
                yield test


def _leaves(statement: ast.stmt) -> bool:
    match statement:
        case ast.Return() | ast.Continue() | ast.Break() | ast.Raise():
            return True
        case ast.Expr(ast.Call() as call):
            return last_name(call) in {"exit", "_exit", "quit"}
    return False
