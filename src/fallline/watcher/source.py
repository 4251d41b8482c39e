"""The user's source behind a line of a run: which test decides a step, what a statement does. Read, never run."""

from __future__ import annotations

import ast
import linecache
import os
from functools import lru_cache

from fallline.event import Event, Location

__all__ = ["boundary_of", "enclosing", "parsed", "statement_at"]


@lru_cache(maxsize=64)
def parsed(path: str) -> ast.Module | None:
    """The syntax tree of a file of the run, with parents; None where there is no source."""
    lines = linecache.getlines(path) or linecache.getlines(os.path.abspath(path))
    if not lines:
        return None
    try:
        tree = ast.parse("".join(lines))
    except (SyntaxError, ValueError, RecursionError):
        return None
    for node in ast.walk(tree):
        for child in ast.iter_child_nodes(node):
            child.parent = node  # type: ignore[attr-defined]
    return tree


def statement_at(path: str, line: int) -> ast.stmt | None:
    """The innermost statement that this line is part of."""
    tree = parsed(path)
    best: ast.stmt | None = None
    if tree is not None:
        for node in ast.walk(tree):
            if isinstance(node, ast.stmt) and node.lineno <= line <= (node.end_lineno or node.lineno):
                if best is None or (node.lineno, -(node.end_lineno or 0)) >= (best.lineno, -(best.end_lineno or 0)):
                    best = node
    return best


def enclosing(node: ast.AST) -> list[ast.AST]:
    """From the nearest parent outwards."""
    found = []
    up = getattr(node, "parent", None)
    while up is not None:
        found.append(up)
        up = getattr(up, "parent", None)
    return found


def boundary_of(step: Event) -> Location | None:
    """The test that decides whether to step: around the step itself, else around the call that led to it."""
    for at in (step.at, *step.callers):
        found = _boundary(at.path, at.line, at.function)
        if found is not None:
            return found
    return None


@lru_cache(maxsize=1024)
def _boundary(path: str, line: int, function: str) -> Location | None:
    statement = statement_at(path, line)
    if statement is None:
        return None
    tests: list[ast.If] = []
    for up in [statement, *enclosing(statement)]:
        if isinstance(up, ast.If) and not (up.test.lineno <= line <= (up.test.end_lineno or up.test.lineno)):
            tests.append(up)
        elif isinstance(up, ast.For | ast.While | ast.FunctionDef | ast.AsyncFunctionDef):
            break
    if not tests:
        return None
    # `if scaler is not None:` inside `if (i + 1) % k == 0:` is a switch; the test that counts is the boundary
    counting = [t for t in tests if any(isinstance(n, ast.Mod) for n in ast.walk(t.test))]
    test = (counting or tests)[0].test
    return Location(path, test.lineno, test.col_offset + 1, test.end_lineno, (test.end_col_offset or 0) + 1, function)
