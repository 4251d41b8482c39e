"""Moving whole lines into or out of a block: what several fixes do to a run of statements."""

from __future__ import annotations

import ast
from collections.abc import Sequence

from fallline.finding import Edit
from fallline.syntax import Editor
from fallline.syntax.nodes import below

__all__ = ["reindented"]


def reindented(
    editor: Editor, statements: Sequence[ast.stmt], to: str, first_line: int | None = None
) -> Edit | None:
    """The lines of these neighbouring statements at another indentation.

    None where that is not certain: a statement shares its line with another, or a string runs over several
    lines, so that its content would move too.
    """
    first, last = statements[0], statements[-1]
    start = first_line or first.lineno
    end = last.end_lineno or last.lineno
    if not all(editor.alone(s) for s in (first, last)) or any(map(_holds_long_string, statements)):
        return None
    old = editor.indent(first)
    lines = editor.source.lines[start - 1 : end]
    if not all(line.startswith(old) for line in lines if line.strip()):
        return None  # a comment or a continuation further left: its place is not ours to choose
    moved = [to + line.removeprefix(old) if line.strip() else line for line in lines]
    return Edit(start, 1, end, len(lines[-1]) + 1, "\n".join(moved))


def _holds_long_string(statement: ast.stmt) -> bool:
    return any(
        isinstance(node, ast.JoinedStr) or isinstance(node.value, str | bytes)
        for node in below(statement, ast.Constant, ast.JoinedStr)
        if (node.end_lineno or 0) > node.lineno
    )
