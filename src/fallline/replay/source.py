"""The user's source behind a line of a run: which test decides a step, what a statement does. Read, never run."""

from __future__ import annotations

import ast
import linecache
import os
from collections.abc import Iterator
from functools import lru_cache
from itertools import islice
from types import CodeType, FrameType

from fallline.events import Event
from fallline.location import Location
from fallline.syntax.nodes import below

__all__ = [
    "attribute_at",
    "boundary_of",
    "enclosing",
    "line_of",
    "over_modules",
    "over_parameters",
    "parsed",
    "statement_at",
]


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
        for node in below(tree, ast.stmt):
            if node.lineno <= line <= (node.end_lineno or node.lineno):
                if best is None or (node.lineno, -(node.end_lineno or 0)) >= (
                    best.lineno,
                    -(best.end_lineno or 0),
                ):
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
    for at in (step.at, *reversed(step.callers)):
        found = _boundary(at.path, at.line, at.column, at.function)
        if found is not None:
            return found
    return None


@lru_cache(maxsize=1024)
def _boundary(path: str, line: int, column: int, function: str) -> Location | None:
    statement = statement_at(path, line)
    if statement is None:
        return None
    tests: list[ast.If] = []
    for up in [statement, *enclosing(statement)]:
        if isinstance(up, ast.If) and not _is_in(up.test, line, column):
            tests.append(up)
        elif isinstance(up, ast.For | ast.While | ast.FunctionDef | ast.AsyncFunctionDef):
            break
    if not tests:
        return None
    # `if scaler is not None:` inside `if (i + 1) % k == 0:` is a switch; the test that counts is the boundary
    counting = [t for t in tests if any(isinstance(n, ast.Mod) for n in ast.walk(t.test))]
    test = (counting or tests)[0].test
    return Location(
        path,
        test.lineno,
        test.col_offset + 1,
        test.end_lineno,
        (test.end_col_offset or 0) + 1,
        function,
    )


def _is_in(test: ast.expr, line: int, column: int) -> bool:
    """`if scaler.step(optimizer):`, and not `if i % 4 == 3: optimizer.step()`."""
    end = test.end_lineno or test.lineno, test.end_col_offset or 0
    return test.lineno <= line and (line, column - 1) < end


def over_modules(at: Location) -> bool:
    """Whether this line is in a loop over the modules of a model."""
    return _loops_over(at, ("modules", "children", "named_modules", "named_children"))


def over_parameters(at: Location) -> bool:
    """Whether this line is in a loop over parameters."""
    return _loops_over(at, ("parameters", "named_parameters"))


@lru_cache(maxsize=256)
def _loops_over(at: Location, names: tuple[str, ...]) -> bool:
    statement = statement_at(at.path, at.line)
    around = enclosing(statement) if statement is not None else []
    spans = [up.iter for up in around if isinstance(up, ast.For)]
    if statement is not None:
        spans += [n.iter for n in below(statement, ast.comprehension)]
    return any(n.attr in names for span in spans for n in below(span, ast.Attribute))


_OPERATORS: dict[str, type[ast.operator]] = {
    "div": ast.Div, "mul": ast.Mult, "sub": ast.Sub, "add": ast.Add, "pow": ast.Pow, "matmul": ast.MatMult
}  # fmt: skip


def line_of(op: str, before: Location) -> Location | None:
    """The one line above, in the same loop or function, or else in the file, that can be this operation; None when there are several."""
    statement = statement_at(before.path, before.line)
    if statement is None:
        return None
    outwards = enclosing(statement)
    near = [
        up for up in outwards if isinstance(up, ast.For | ast.While | ast.FunctionDef | ast.Module)
    ]
    for around in (*near[:1], outwards[-1]):
        found = {line for line in _lines(op, around) if line <= before.line}
        if found:
            break
    return Location(before.path, found.pop(), function=before.function) if len(found) == 1 else None


def _lines(op: str, around: ast.AST) -> Iterator[int]:
    """Where this operation is written in a piece of code."""
    for node in ast.walk(around):
        if isinstance(node, ast.Call):
            func = node.func
            name = func.attr if isinstance(func, ast.Attribute) else getattr(func, "id", "")
            if name == op:
                yield node.lineno
        elif isinstance(node, ast.BinOp) and isinstance(node.op, _OPERATORS.get(op, ast.FloorDiv)):
            yield node.lineno


def attribute_at(frame: FrameType, name: str) -> ast.Attribute | None:
    """The attribute expression that a frame is just evaluating."""
    return _attribute(frame.f_code, frame.f_lasti, name)


@lru_cache(maxsize=1024)
def _attribute(code: CodeType, instruction: int, name: str) -> ast.Attribute | None:
    tree = parsed(code.co_filename)
    line, end_line, _, end = next(islice(code.co_positions(), instruction // 2, None), (None,) * 4)
    if tree is None or line is None:
        return None
    found = [
        n
        for n in below(tree, ast.Attribute)
        if n.attr == name and n.lineno <= (end_line or line) and (n.end_lineno or n.lineno) >= line
    ]
    exact = [n for n in found if n.end_col_offset == end and n.end_lineno == end_line]
    best = exact or found
    return best[0] if best else None
