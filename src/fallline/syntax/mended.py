"""Code as it was pasted: the indentation of its first line, of a block or of one line was lost on the way. It is read as it was meant, at its own lines and columns."""

from __future__ import annotations

import ast
import io
import tokenize

__all__ = ["mended"]

_LARGEST = 20_000  # of what somebody pastes
_PROMPTS = (">>> ", "... ")


def mended(text: str) -> ast.Module | None:
    """The tree of a text whose only mistake is its indentation; None where that is not so."""
    if len(text) > _LARGEST:
        return None
    lines = text.split("\n")
    try:
        starts = _logical_lines(lines)
        moved = _aligned(lines, starts)
        tree = ast.parse("\n".join(moved))
    except (SyntaxError, ValueError, RecursionError, MemoryError, tokenize.TokenError):
        return None
    shift = [_indent(old) - _indent(new) for old, new in zip(lines, moved, strict=True)]
    for node in ast.walk(tree):
        if isinstance(node, ast.expr | ast.stmt | ast.arg | ast.keyword | ast.alias | ast.pattern):
            node.col_offset += shift[node.lineno - 1]
            if node.end_lineno is not None and node.end_col_offset is not None:
                node.end_col_offset += shift[node.end_lineno - 1]
    return tree


def _indent(line: str) -> int:
    return len(line) - len(line.lstrip(" \t"))


def _logical_lines(lines: list[str]) -> list[tuple[int, int, bool]]:
    """Where each statement's line begins, how far it is indented, and whether it opens a block."""
    found: list[tuple[int, int, bool]] = []
    flat = "\n".join(line.lstrip(" \t") for line in lines) + "\n"
    first: int | None = None
    last = ""
    for token in tokenize.generate_tokens(io.StringIO(flat).readline):
        if token.type in {tokenize.COMMENT, tokenize.NL, tokenize.INDENT, tokenize.DEDENT}:
            continue
        if token.type in {tokenize.NEWLINE, tokenize.ENDMARKER}:
            if first is not None:
                width = len(lines[first][: _indent(lines[first])].expandtabs(4))
                found.append((first, width, last == ":"))
            first = None
            continue
        if first is None:
            first = token.start[0] - 1
        last = token.string
    return found


def _aligned(lines: list[str], starts: list[tuple[int, int, bool]]) -> list[str]:
    """The lines, each at the level that its indentation is nearest to."""
    moved = list(lines)
    levels: list[tuple[int, int]] = []  # the indentation as written, and as it is read
    opened = False
    for n, (line, width, opens) in enumerate(starts):
        read = _level(levels, width, opened)
        end = starts[n + 1][0] if n + 1 < len(starts) else len(lines)
        moved[line] = " " * read + lines[line].lstrip(" \t")
        if opens and (n + 1 == len(starts) or starts[n + 1][1] <= width):
            moved[line] += " pass"  # its block was only comments, or was cut off
            opens = False
        for rest in range(line + 1, end):  # what continues in the next line needs no indentation
            if lines[rest].lstrip().startswith("#"):
                moved[rest] = " " * read + lines[rest].lstrip(" \t")
        opened = opens
    return moved


def _level(levels: list[tuple[int, int]], width: int, opened: bool) -> int:
    if opened and levels and width > levels[-1][0]:
        levels.append((width, levels[-1][1] + 4))
        return levels[-1][1]
    left: tuple[int, int] | None = None
    while levels and width < levels[-1][0]:
        left = levels.pop()
    if not levels:
        levels.append((width, 0))
    elif width != levels[-1][0]:
        if left is not None and left[0] - width < width - levels[-1][0]:
            levels.append(left)
        elif (
            left is None
        ):  # deeper than the line above, which opens nothing: a block that was pasted from deeper inside
            levels.append((width, levels[-1][1]))
    return levels[-1][1]
