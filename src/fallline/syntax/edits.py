"""Text edits on one file: how fixes say what to change, and how changes are applied."""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections.abc import Iterable, Iterator

from fallline.finding import Edit
from fallline.syntax.module import Module
from fallline.syntax.nodes import below

__all__ = ["Editor", "apply", "split_lines"]

_LINE = re.compile(r"[^\r\n]*(?:\r\n|\r|\n|$)")


class Editor:
    """Makes edits from nodes of a module. Whole statements move with their indentation and comments on the line."""

    def __init__(self, module: Module) -> None:
        self.module = module
        self.source = module.source

    def replace(self, node: ast.AST, content: str) -> Edit:
        """Put `content` where the node is."""
        at = self.source.location(node)
        assert at.end_line is not None and at.end_column is not None
        return Edit(at.line, at.column, at.end_line, at.end_column, content)

    def insert(self, line: int, column: int, content: str) -> Edit:
        return Edit(line, column, line, column, content)

    def alone(self, statement: ast.stmt) -> bool:
        """The statement has its lines to itself: no `;` neighbours, no `if x: y` on one line."""
        first = self.source.lines[statement.lineno - 1]
        last = self.source.lines[(statement.end_lineno or statement.lineno) - 1]
        at = self.source.location(statement)
        rest = last[(at.end_column or 1) - 1 :].strip()
        return not first[: at.column - 1].strip() and (not rest or rest.startswith("#"))

    def indent(self, statement: ast.stmt) -> str:
        line = self.source.lines[statement.lineno - 1]
        return line[: len(line) - len(line.lstrip())]

    def delete(self, statement: ast.stmt) -> Edit:
        """Remove a statement with its lines; a block left empty gets `pass`."""
        up = self.module.parent(statement)
        blocks = [getattr(up, name, None) for name in ("body", "orelse", "finalbody")]
        only = any(isinstance(b, list) and b == [statement] for b in blocks) and not isinstance(
            up, ast.Module
        )
        end = statement.end_lineno or statement.lineno
        if only:
            return self.replace(statement, "pass")
        if end < len(self.source.lines):
            return Edit(statement.lineno, 1, end + 1, 1, "")
        return Edit(statement.lineno, 1, end, len(self.source.lines[end - 1]) + 1, "")

    def lines_of(self, statement: ast.stmt) -> list[str]:
        return self.source.lines[statement.lineno - 1 : statement.end_lineno or statement.lineno]

    def insert_before(self, anchor: ast.stmt, text: str) -> Edit:
        """New lines before a statement, at its indentation. `text` has no indentation of its own."""
        return self.insert(anchor.lineno, 1, self._indented(text, self.indent(anchor)))

    def insert_after(self, anchor: ast.stmt, text: str) -> Edit:
        """New lines after a statement, at its indentation."""
        end = anchor.end_lineno or anchor.lineno
        block = self._indented(text, self.indent(anchor))
        if end < len(self.source.lines):
            return self.insert(end + 1, 1, block)
        return self.insert(end, len(self.source.lines[end - 1]) + 1, "\n" + block.rstrip("\n"))

    def move_before(self, statement: ast.stmt, anchor: ast.stmt) -> tuple[Edit, ...]:
        """Move whole lines of a statement before another one."""
        return (self.insert_before(anchor, self._dedented(statement)), self.delete(statement))

    def move_after(self, statement: ast.stmt, anchor: ast.stmt) -> tuple[Edit, ...]:
        """Move whole lines of a statement after another one."""
        return (self.insert_after(anchor, self._dedented(statement)), self.delete(statement))

    def add_argument(self, call: ast.Call, text: str) -> Edit:
        """One more argument at the end of a call, past trailing commas, parentheses and comments."""
        *_, last, _closing = self._tokens(call)
        line, column = self._absolute(call, last.end)
        comma = "" if last.string in {",", "("} else ", "
        return self.insert(line, column, f" {text}" if last.string == "," else f"{comma}{text}")

    def remove_keyword(self, call: ast.Call, name: str) -> Edit | None:
        """Cut a keyword argument, with the comma that belongs to it."""
        keyword = next((k for k in call.keywords if k.arg == name), None)
        if keyword is None:
            return None
        at = self.source.location(keyword)
        tokens = [
            (t, self._absolute(call, t.start), self._absolute(call, t.end))
            for t in self._tokens(call)
        ]
        here = next(i for i, (_, start, _) in enumerate(tokens) if start == (at.line, at.column))
        end = (at.end_line or at.line, at.end_column or at.column)
        if tokens[here - 1][0].string == ",":
            return Edit(*tokens[here - 1][1], *end, "")
        following = next(
            (i for i, (t, start, _) in enumerate(tokens) if start >= end and t.string == ","), None
        )
        if following is not None:
            return Edit(at.line, at.column, *tokens[following + 1][1], "")
        return Edit(at.line, at.column, *end, "")

    def _tokens(self, node: ast.AST) -> list[tokenize.TokenInfo]:
        """What a node is written with, less comments and line ends."""
        text = io.StringIO(self.source.segment(node))
        layout = {
            tokenize.COMMENT,
            tokenize.NL,
            tokenize.NEWLINE,
            tokenize.INDENT,
            tokenize.DEDENT,
            tokenize.ENDMARKER,
        }
        return [t for t in tokenize.generate_tokens(text.readline) if t.type not in layout]

    def _absolute(self, node: ast.AST, position: tuple[int, int]) -> tuple[int, int]:
        """A place in a node's own text as line and column of the file."""
        at = self.source.location(node)
        line, offset = position
        return (at.line + line - 1, (at.column if line == 1 else 1) + offset)

    def wrap(self, statement: ast.stmt, header: str) -> tuple[Edit, ...] | None:
        """Put a statement under a header such as `with torch.no_grad():`; None where text inside must not be indented."""
        if not self.alone(statement) or any(
            n.end_lineno != n.lineno for n in below(statement, ast.Constant, ast.JoinedStr)
        ):
            return None
        lines = range(statement.lineno, (statement.end_lineno or statement.lineno) + 1)
        deeper = tuple(self.insert(n, 1, "    ") for n in lines if self.source.lines[n - 1].strip())
        return (self.insert_before(statement, header), *deeper)

    def statement_at(self, line: int) -> ast.stmt | None:
        """The innermost statement that begins or lies on this line."""
        best: ast.stmt | None = None
        here: ast.AST = self.module.tree
        while True:
            found = [s for s in _below(here) if s.lineno <= line <= (s.end_lineno or s.lineno)]
            if not found:
                return best
            best = here = found[-1]

    def block_of(self, statement: ast.stmt) -> list[ast.stmt]:
        """The list of statements this one is in."""
        up = self.module.parent(statement)
        for name in ("body", "orelse", "finalbody"):
            block = getattr(up, name, None)
            if isinstance(block, list) and statement in block:
                return block
        return [statement]

    def _dedented(self, statement: ast.stmt) -> str:
        indent = self.indent(statement)
        return "\n".join(line.removeprefix(indent) for line in self.lines_of(statement))

    @staticmethod
    def _indented(text: str, indent: str) -> str:
        return "".join((indent + line if line else line) + "\n" for line in text.split("\n"))


def _below(node: ast.AST) -> Iterator[ast.stmt]:
    """The statements of a node's own blocks."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.stmt):
            yield child
        elif isinstance(child, ast.ExceptHandler | ast.match_case):
            yield from _below(child)


def apply(text: str, edits: Iterable[Edit]) -> str | None:
    """The text with the edits made; None where they overlap."""
    lines = split_lines(text)
    starts = [0]
    for line in lines:
        starts.append(starts[-1] + len(line))

    def offset(line: int, column: int) -> int:
        if line > len(lines):
            return len(text)
        return min(starts[line - 1] + column - 1, len(text))

    spans = sorted(
        (offset(e.line, e.column), offset(e.end_line, e.end_column), i, e)
        for i, e in enumerate(edits)
    )
    out: list[str] = []
    position = 0
    for start, end, _, edit in spans:
        if start < position:
            return None
        out += (text[position:start], edit.content)
        position = end
    out.append(text[position:])
    return "".join(out)


def split_lines(text: str) -> list[str]:
    """Lines with their ends as Python counts them; `str.splitlines` would also split at form feeds."""
    return [line for line in _LINE.findall(text) if line]
