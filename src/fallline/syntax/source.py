"""One file's text: bytes to lines, notebooks to one module, positions back to what the user sees."""

from __future__ import annotations

import ast
import io
import re
import tokenize
import warnings
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from fallline.location import Location
from fallline.syntax.mended import mended
from fallline.syntax.newer import older
from fallline.syntax.python2 import as_python3
from fallline.syntax.tokens import Tokens, words_in
from fallline.untrusted import parse_json

__all__ = ["Cell", "Source", "UnreadableError", "decode"]

_MAGIC = re.compile(
    r"^\s*(%|!|\?|[\w.*\[\]]+\?\??;?\s*$|(pip|conda|cd|ls|cat|cp|mv|mkdir|rm|matplotlib|load_ext|autoreload|run|timeit?) +[\w./~-])"
)
_ASSIGNED_MAGIC = re.compile(r"^(\s*[\w, ]+=\s*)[%!].*$")
_LARGE = 1_000_000  # code of this size is data, and not searched for newer grammar


# What course material leaves open: `x = <YOUR CODE>`, `x = # your code`, `f(x, ?)`, `def forward(self, ...)`. No
# expression begins with `<`.
_BLANK = re.compile(
    r"(^|[=(,:]|\b(return|in))\s*<[^<>]*>|<\s*(\.\.\.|[a-z_][^<>=]*)>|=\s*(#|[,)]|$)|[(,]\s*\?+\s*[,)]"
    r"|#.*\b(your[ _](code|solution|answer)|todo)\b|\bdef \w+\([^)]*\.\.\.",
    re.IGNORECASE,
)

# A line that Python 2 could read, or a Python before `async` was a keyword: `print x`, `except A, e:`, `x.cuda(async=True)`.
_OLD = re.compile(
    r"^\s*print\s+[^\s=(.\[,)]|^\s*print\s*>>|^\s*exec\s+['\"\w]|^\s*except\b[^:#]*,\s*\w+\s*:|^\s*raise\s+[\w.]+\s*,"
    r"|[(,]\s*async\s*=|<>|`[^`]+`|\b0[0-7]+\b|\b\d+L\b|\bur['\"]"
)


class UnreadableError(Exception):
    """The file, or a cell of it, cannot be read or parsed; carries where and why in words.

    `blank`: it stops at a place that was left open on purpose, for somebody to fill in. `indented`: at an indentation.
    `old`: at a line that an older Python could read.
    """

    def __init__(
        self,
        message: str,
        line: int = 1,
        column: int = 1,
        *,
        blank: bool = False,
        indented: bool = False,
        old: bool = False,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.line = max(1, line)
        self.column = max(1, column)
        self.blank = blank
        self.indented = indented
        self.old = old


@dataclass(frozen=True, slots=True)
class Cell:
    """A code cell of a notebook: `number` counts all cells from 1, `start` is its first line in the module."""

    number: int
    start: int
    length: int


@dataclass
class Source:
    """The text of one file. For a notebook, `text` is all code cells, magics commented out.

    A cell that is not Python does not keep the others from running, nor from being read: it is commented out, and
    `unread` says why. So does it for a text that is pasted with a wrong indentation, once it is parsed.
    """

    path: str
    text: str
    cells: tuple[Cell, ...] = field(default=())
    unread: tuple[UnreadableError, ...] = field(default=())
    old: bool = False  # it was written for an older Python, and is read as Python 3

    @classmethod
    def from_bytes(cls, path: str, data: bytes) -> Source:
        if path.endswith(".ipynb"):
            return _notebook(path, data)
        if b"\0" in data:
            raise UnreadableError("the file contains NUL bytes: it is not Python source")
        return cls(path, decode(data)[0])

    @cached_property
    def lines(self) -> list[str]:
        """Lines without their ends, as Python counts them."""
        # not str.splitlines(), which also splits on form feeds and other separators
        if "\r" not in self.text:
            return self.text.split("\n")
        return re.split(r"\r\n|\r|\n", self.text)

    @cached_property
    def data(self) -> bytes:
        """The text as bytes."""
        return self.text.encode(errors="replace")

    @cached_property
    def _words(self) -> frozenset[bytes]:
        return words_in(self.data)

    def spells(self, word: str) -> bool:
        """Whether a word is anywhere in the text."""
        return word.encode() in self._words

    def held(self, tokens: Tokens) -> set[bytes]:
        """Those of some tokens that are in the text."""
        return tokens.held(self.data, self._words)

    @cached_property
    def _ascii(self) -> bool:
        return self.text.isascii()

    def column(self, line: int, offset: int) -> int:
        """The column, from 1 in characters, of a UTF-8 byte offset as `ast` gives it."""
        if self._ascii or line > len(self.lines):
            return offset + 1
        return len(self.lines[line - 1].encode()[:offset].decode(errors="replace")) + 1

    def location(self, node: ast.AST, function: str = "") -> Location:
        """Where a node is, as lines and columns of `text` (for notebooks: of the whole module)."""
        line = getattr(node, "lineno", 1)
        end_line = getattr(node, "end_lineno", None) or line
        return Location(
            self.path,
            line,
            self.column(line, getattr(node, "col_offset", 0)),
            end_line,
            self.column(end_line, getattr(node, "end_col_offset", None) or 0),
            function,
        )

    def segment(self, node: ast.AST) -> str:
        """The source text of a node."""
        line: int = getattr(node, "lineno", 1)
        end_line: int = getattr(node, "end_lineno", None) or line
        lines = self.lines[line - 1 : end_line]
        if not lines:
            return ""
        start = self.column(line, getattr(node, "col_offset", 0)) - 1
        end = self.column(end_line, getattr(node, "end_col_offset", None) or 0) - 1
        if len(lines) == 1:
            return lines[0][start:end]
        return "\n".join([lines[0][start:], *lines[1:-1], lines[-1][:end]])

    def cell_of(self, line: int) -> tuple[Cell, int] | None:
        """The notebook cell of a module line, and the line inside that cell."""
        for cell in self.cells:
            if cell.start <= line < cell.start + cell.length:
                return cell, line - cell.start + 1
        return None

    def parse(self) -> ast.Module:
        """The syntax tree; raises `UnreadableError` with the reason in words."""
        try:
            return _parse(self.text, self.path)
        except UnreadableError as error:
            cells = None if self.cells else _exported(self.text)
            if cells is not None and _is_python(cells):
                return _parse(cells, self.path)
            tree = _older_tree(self.text, self.path) if error.old else None
            if tree is None and error.indented and not self.cells:
                tree = mended(self.text)
            if tree is None:
                raise
            self.unread = (*self.unread, error)
            self.old = error.old
            return tree


def _parse(text: str, path: str = "") -> ast.Module:
    try:
        return _tree(text, path)
    except SyntaxError as error:
        newer = _newer_tree(text, path)
        if newer is not None:
            return newer
        reason = (error.msg or "invalid syntax").split("\n")[0]
        line = error.lineno or 1
        around = text.split("\n")[max(0, line - 4) : line + 1]
        raise UnreadableError(
            f"syntax error: {reason}",
            line,
            error.offset or 1,
            blank=any(map(_BLANK.search, around)),
            indented=isinstance(error, IndentationError),
            old=isinstance(error, TabError)
            or _OLD.search("".join(text.split("\n")[line - 1 : line])) is not None,
        ) from None
    except (RecursionError, MemoryError):
        raise UnreadableError("the code is nested too deeply to be parsed") from None
    except ValueError as error:
        raise UnreadableError(f"cannot be parsed: {error}") from None


def _tree(text: str, path: str) -> ast.Module:
    with warnings.catch_warnings():
        # invalid escapes in other people's strings are not our message to give
        warnings.simplefilter("ignore")
        return ast.parse(_without_data(text), path or "<cell>", type_comments=False)


_LARGE = 500_000
_NUMBER = r"[-+]?[\d.][\w.]*+\s*+,\s*+"
# more than anybody asks for of a list
_DATA = re.compile(rf"((?:{_NUMBER}){{4096}}+)((?:{_NUMBER})++)")
_INK = re.compile(r"\S+")


def _without_data(text: str) -> str:
    """The text of a large file with blanks in place of most numbers of a long table: each would cost a kilobyte."""
    if len(text) < _LARGE:
        return text
    return _DATA.sub(lambda m: m[1] + _INK.sub(lambda ink: " " * len(ink[0]), m[2]), text)


def _newer_tree(text: str, path: str) -> ast.Module | None:
    """The tree of code for a newer Python than this one; None where no Python reads it."""
    spelled = older(text) if len(text) < _LARGE else None
    try:
        return _tree(spelled, path) if spelled is not None else None
    except (SyntaxError, RecursionError, MemoryError, ValueError):
        return None


def _older_tree(text: str, path: str) -> ast.Module | None:
    """The tree of code for Python 2; None where it cannot be spelled as Python 3."""
    spelled = as_python3(text) if len(text) < _LARGE else None
    try:
        return _tree(spelled, path) if spelled is not None else None
    except (SyntaxError, RecursionError, MemoryError, ValueError):
        return None


def _exported(text: str) -> str | None:
    """The cells of a notebook saved as one file, with their magics: `%matplotlib inline`, `!pip install`, `%%writefile a.py`."""
    if len(text) >= _LARGE or not re.search(r"^[%!]", text, re.M):
        return None
    lines = ["# " + line[2:] if line.startswith("%%") else line for line in text.split("\n")]
    return "\n".join(_without_magics(lines))


def decode(data: bytes) -> tuple[str, str]:
    """The text of a Python file, and its encoding."""
    try:
        encoding = "utf-8"
        head = b"".join(data.split(b"\n", 2)[:2])
        if b"coding" in head or not head.isascii():
            encoding, _ = tokenize.detect_encoding(io.BytesIO(data).readline)
    except (SyntaxError, LookupError) as error:
        raise UnreadableError(f"unknown encoding: {error}") from None
    try:
        return data.decode(encoding), encoding
    except UnicodeDecodeError as error:
        line = data[: error.start].count(b"\n") + 1
        raise UnreadableError(
            f"not valid {error.encoding} at byte {error.start}; declare its encoding or save it as UTF-8",
            line,
        ) from None
    except Exception as error:  # a codec may raise anything: punycode, idna, undefined, hex
        raise UnreadableError(f"cannot be decoded as {encoding}: {error}") from None


def _notebook(path: str, data: bytes) -> Source:
    if not data.strip():
        return Source(path, "")  # begun and never saved
    try:
        book = parse_json(data.decode("utf-8-sig"))
        if _language(book) != "python":
            return Source(path, "")
        raw_cells = (
            book["cells"]
            if "cells" in book
            else [c for w in book["worksheets"] for c in w["cells"]]
        )
        lines: list[str] = []
        cells: list[Cell] = []
        unread: list[UnreadableError] = []
        for number, raw in enumerate(raw_cells, 1):
            if raw.get("cell_type") != "code":
                continue
            body = raw.get("source", raw.get("input", ""))
            text = body if isinstance(body, str) else "".join(body)
            cell_lines = _without_magics(text.replace("\r\n", "\n").split("\n"))
            try:
                _parse("\n".join(cell_lines))
            except UnreadableError as error:
                error.line += len(lines)
                unread.append(error)
                cell_lines = ["# " + line for line in cell_lines]
            cells.append(Cell(number, len(lines) + 1, len(cell_lines)))
            lines += cell_lines
    except ValueError as error:
        raise UnreadableError(f"not a notebook that can be read: {error}") from None
    except (KeyError, TypeError, AttributeError):
        raise UnreadableError("not a notebook that can be read: it has no list of cells") from None
    return Source(path, "\n".join(lines) + "\n", tuple(cells), tuple(unread))


def _language(book: dict[str, Any]) -> str:
    """What the notebook is written in: Python, unless it says otherwise."""
    about = book.get("metadata") or {}
    named = (
        (about.get("kernelspec") or {}).get("language")
        or (about.get("language_info") or {}).get("name")
        or ""
    )
    return "python" if not named or "python" in str(named).lower() else str(named)


def _is_python(text: str) -> bool:
    try:
        _parse(text)
    except UnreadableError:
        return False
    return True


def _without_indent(lines: list[str], first: str) -> list[str]:
    """IPython takes the indentation of a cell's first line away from all of its lines."""
    indent = first[: len(first) - len(first.lstrip())]
    return [line.removeprefix(indent) for line in lines] if indent else lines


def _without_magics(lines: list[str]) -> list[str]:
    first = next((line for line in lines if line.strip()), "")
    if first.lstrip().startswith("%%") and not re.match(
        r"\s*%%(time|timeit|capture|prun|watch)\b", first
    ):
        return ["# " + line for line in lines]
    lines = _without_indent(lines, first)
    if _is_python("\n".join(lines)):
        return lines  # a line that begins with % goes on a sum or a format
    kept: list[str] = []
    goes_on = False  # a command for the shell, continued with a backslash
    code_goes_on = False
    code_before = False
    for line in lines:
        assigned = _ASSIGNED_MAGIC.match(line)
        if goes_on:
            kept.append("# " + line)
            goes_on = line.endswith("\\")
        elif code_goes_on:
            kept.append(line)
        elif assigned:
            kept.append(assigned[1] + "None")
            goes_on = line.endswith("\\")
        elif _MAGIC.match(line) and not line.strip().startswith("#"):
            indent = len(line) - len(line.lstrip()) if code_before else 0
            kept.append(line[:indent] + "pass  # " + line[indent:])
            goes_on = line.endswith("\\") and line.lstrip()[0] in "!%"
        else:
            kept.append(line)
        code_goes_on = kept[-1] == line and line.endswith("\\")
        code_before = code_before or bool(line.strip() and not line.strip().startswith("#"))
    return kept
