"""Notebooks: the reader sees all code cells as one module; people and files see cells."""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from fallline.finding import Edit, Finding
from fallline.syntax import Source
from fallline.syntax.edits import apply
from fallline.syntax.source import Cell
from fallline.untrusted import parse_json

__all__ = ["edited", "localise"]


def localise(finding: Finding, source: Source) -> Finding:
    """The finding with lines counted inside its cell, and the cell's number in the evidence."""
    placed = source.cell_of(finding.at.line)
    if placed is None:
        return finding
    cell, line = placed
    shift = finding.at.line - line
    end = finding.at.end_line or finding.at.line
    at = replace(finding.at, line=line, end_line=min(end - shift, cell.length))
    evidence: dict[str, Any] = {**finding.evidence, "cell": cell.number}
    if "witness" in evidence:
        evidence["witness"] = [_step(step, source) for step in evidence["witness"]]
    fix = finding.fix
    if fix is not None:
        homes = [_home(edit, source) for edit in fix.edits]
        inside = tuple(
            _shifted(edit, home)
            for edit, home in zip(fix.edits, homes, strict=True)
            if home is not None
        )
        # a fix that reaches into other cells is made by --fix, but cannot be told in this cell's lines
        one_cell = all(home is not None and home.number == cell.number for home in homes)
        fix = replace(fix, edits=inside) if one_cell else None
    return Finding(
        finding.code,
        finding.name,
        finding.severity,
        finding.message if finding.code == "FL000" else _in_cells(finding.message, cell, source),
        at,
        fix,
        evidence,
        finding.related,
    )


def _in_cells(message: str, here: Cell, source: Source) -> str:
    """A message with the lines that it names counted inside their cells."""

    def counted(found: re.Match[str]) -> str:
        placed = source.cell_of(int(found[1]))
        if placed is None:
            return found[0]
        of = "" if placed[0].number == here.number else f" of cell {placed[0].number}"
        return f"line {placed[1]}{of}"

    return re.sub(r"\bline (\d+)", counted, message)


def _step(step: dict[str, Any], source: Source) -> dict[str, Any]:
    placed = source.cell_of(step["line"]) if step.get("path") == source.path else None
    return step if placed is None else {**step, "cell": placed[0].number, "line": placed[1]}


def edited(data: bytes, source: Source, edits: Sequence[Edit]) -> bytes | None:
    """The notebook's bytes with the edits made inside its cells; None where they do not fit into cells."""
    by_cell: dict[int, list[Edit]] = defaultdict(list)
    cells = {cell.number: cell for cell in source.cells}
    for edit in edits:
        home = _home(edit, source)
        if home is None:
            return None
        by_cell[home.number].append(_shifted(edit, home))
    text = data.decode("utf-8-sig")
    book = parse_json(text)
    raw_cells = (
        book["cells"] if "cells" in book else [c for w in book["worksheets"] for c in w["cells"]]
    )
    for number, inside in by_cell.items():
        raw = raw_cells[number - 1]
        key = "source" if "source" in raw else "input"
        before = raw[key] if isinstance(raw[key], str) else "".join(raw[key])
        after = _cell_edited(before, source, cells[number], inside)
        if after is None:
            return None
        raw[key] = after if isinstance(raw[key], str) else after.splitlines(keepends=True)
    written = _dumped(book, text)
    return (b"\xef\xbb\xbf" if data.startswith(b"\xef\xbb\xbf") else b"") + written.encode()


def _home(edit: Edit, source: Source) -> Cell | None:
    """The cell an edit belongs to. What follows a cell's last line is given as the next cell's first."""
    for cell in source.cells:
        end = cell.start + cell.length
        begins_inside = cell.start <= edit.line < end
        appended = (
            edit.line == end
            and edit.column == 1
            and edit.line == edit.end_line
            and edit.content[:1].isspace()
        )
        ends_inside = edit.end_line < end or (edit.end_line == end and edit.end_column == 1)
        if (begins_inside or appended) and ends_inside:
            return cell
    return None


def _shifted(edit: Edit, cell: Cell) -> Edit:
    return replace(edit, line=edit.line - cell.start + 1, end_line=edit.end_line - cell.start + 1)


def _cell_edited(before: str, source: Source, cell: Cell, edits: Sequence[Edit]) -> str | None:
    seen = source.lines[cell.start - 1 : cell.start - 1 + cell.length]
    real = before.split("\n")
    for edit in edits:
        # a magic reads differently in the module than in the notebook: columns on its line mean nothing
        if any(
            real[n - 1] != seen[n - 1]
            for n in range(edit.line, min(edit.end_line, cell.length) + 1)
        ):
            return None
    ended = before.endswith("\n")
    after = apply(before if ended else before + "\n", edits)
    return after if after is None or ended else after.removesuffix("\n")


def _dumped(book: Any, like: str) -> str:
    """The notebook as JSON in the format it had, so that only the edited lines change."""
    end = like[len(like.rstrip()) :]
    best = ""
    for ascii_only in (False, True):
        for indent in (1, 2, 4, "\t", None):
            made = json.dumps(book, indent=indent, ensure_ascii=ascii_only) + end
            if _same_shape(made, like):
                return made
            best = best or made
    return best


def _same_shape(made: str, like: str) -> bool:
    """Whether the first lines agree in indentation, and whether both write non-ASCII text the same way."""
    indents = [
        [line[: len(line) - len(line.lstrip())] for line in text.split("\n", 4)[:4]]
        for text in (made, like)
    ]
    return indents[0] == indents[1] and made.isascii() == like.isascii()
