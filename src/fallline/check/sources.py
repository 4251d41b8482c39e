"""The text behind findings: read once, for excerpts, comments that silence, and baselines."""

from __future__ import annotations

import ast
import os
from bisect import bisect_right
from dataclasses import dataclass
from functools import cached_property

from fallline.finding import Finding
from fallline.syntax import Source, UnreadableError

__all__ = ["Identity", "Sources", "Text"]

Identity = tuple[str, str, str, str]  # of a finding: path, function, line, code


@dataclass(frozen=True)
class Span:
    """A statement's own lines (of a block: its header) and the function around it."""

    first: int
    last: int
    function: str


class Text:
    """One file as the findings in it need it."""

    def __init__(self, source: Source) -> None:
        self.source = source

    def line(self, number: int) -> str:
        """A line by its number from 1; empty past the end."""
        lines = self.source.lines
        return lines[number - 1] if 0 < number <= len(lines) else ""

    def lines_of_cell(self, number: int) -> list[str]:
        """The lines of a notebook's cell, as the reader sees them."""
        for cell in self.source.cells:
            if cell.number == number:
                return self.source.lines[cell.start - 1 : cell.start - 1 + cell.length]
        return []

    def module_line(self, line: int, cell: int | None) -> int:
        """The line of the whole text for a line that may be counted inside a cell."""
        return next((c.start + line - 1 for c in self.source.cells if c.number == cell), line)

    def span(self, line: int) -> Span:
        """The innermost statement on this line."""
        at = bisect_right(self._starts, line)
        for index in range(at - 1, -1, -1):
            if self._spans[index].first <= line <= self._spans[index].last:
                return self._spans[index]
        return Span(line, line, self._spans[at - 1].function if at else "")

    def function_around(self, line: int) -> range | None:
        """The lines of the innermost function that this line is in."""
        inside = [lines for lines in self._functions if line in lines]
        return min(inside, key=len, default=None)

    @cached_property
    def _functions(self) -> list[range]:
        try:
            nodes = ast.walk(self.source.parse())
        except UnreadableError:
            return []
        functions = (n for n in nodes if isinstance(n, ast.FunctionDef | ast.AsyncFunctionDef))
        return [range(n.lineno, (n.end_lineno or n.lineno) + 1) for n in functions]

    @cached_property
    def _starts(self) -> list[int]:
        return [span.first for span in self._spans]

    @cached_property
    def _spans(self) -> list[Span]:
        try:
            tree = self.source.parse()
        except UnreadableError:
            return []
        found: list[Span] = []
        stack: list[tuple[ast.AST, str]] = [(tree, "")]
        while stack:
            node, function = stack.pop()
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                function = f"{function}.{node.name}" if function else node.name
            if isinstance(node, ast.stmt):
                found.append(Span(_first(node), _last_of_header(node), function))
            stack += [
                (child, function)
                for child in ast.iter_child_nodes(node)
                if not isinstance(child, ast.expr)
            ]
        return sorted(found, key=lambda span: (span.first, -span.last))


def _first(node: ast.stmt) -> int:
    decorators: list[ast.expr] = getattr(node, "decorator_list", [])
    return min([node.lineno, *(d.lineno for d in decorators)])


def _last_of_header(node: ast.stmt) -> int:
    body = getattr(node, "body", None) or getattr(node, "cases", None)
    if not body:
        return node.end_lineno or node.lineno
    inner: ast.stmt | ast.match_case = body[0]
    start = _first(inner) if isinstance(inner, ast.stmt) else inner.pattern.lineno
    return max(node.lineno, start - 1)


class Sources:
    """Texts by path; `given` holds what is not on disk (standard input, a fix being tried)."""

    def __init__(self, given: dict[str, bytes] | None = None) -> None:
        self.given = given or {}
        self._texts: dict[str, Text | None] = {}

    def data(self, path: str) -> bytes:
        """The file's bytes. Raises OSError."""
        if path in self.given:
            return self.given[path]
        with open(path, "rb") as handle:
            return handle.read()

    def text(self, path: str) -> Text | None:
        """The file's text; None where it cannot be read at all."""
        if path not in self._texts:
            self._texts[path] = self._open(path)
        return self._texts[path]

    def identity(self, finding: Finding) -> Identity:
        """The same before and after lines have moved."""
        text = self.text(finding.at.path)
        line = text.line(finding.at.line) if text is not None else ""
        return (finding.at.path, finding.at.function, line, finding.code)

    def _open(self, path: str) -> Text | None:
        try:
            data = self.data(path) if path in self.given or os.path.isfile(path) else b""
            return Text(Source.from_bytes(path, data))
        except UnreadableError:
            # its comments and lines are still worth showing
            return (
                Text(Source(path, data.decode("utf-8", errors="replace")))
                if not path.endswith(".ipynb")
                else None
            )
        except OSError:
            return None
