"""Findings, changes and rules in the words of the protocol."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from difflib import SequenceMatcher
from typing import Any

from lsprotocol import types
from pygls import uris
from pygls.workspace import PositionCodec

from fallline.finding import Finding
from fallline.report.rule_page import page
from fallline.rule import Rule
from fallline.syntax.edits import split_lines

__all__ = ["diagnostic", "explained", "text_edits"]

_SEVERITY = {
    "error": types.DiagnosticSeverity.Error,
    "warning": types.DiagnosticSeverity.Warning,
    "info": types.DiagnosticSeverity.Information,
}
_MOST_EVENTS = 12
# In a hover: not the example, which is the user's own code, and not what the quick fixes offer.
_LEFT_OUT = ("Example", "Silence it")


def diagnostic(
    finding: Finding, text: str, codec: PositionCodec, with_events: bool
) -> types.Diagnostic:
    """One finding; `text` is that of its file or cell, `with_events` adds the events that led to it."""
    at = finding.at
    end_line, end_column = at.end_line or at.line, at.end_column or at.column
    settings = finding.evidence.get("settings") or []
    under = f"\nwhen {' and '.join(settings)}" if settings else ""
    return types.Diagnostic(
        range=_range(split_lines(text), (at.line, at.column), (end_line, end_column), codec),
        message=f"{finding.name}: {finding.message}{under}",
        severity=_SEVERITY[finding.severity.value],
        code=finding.code,
        source="fallline",
        related_information=_events(finding) if with_events else None,
    )


def _events(finding: Finding) -> list[types.DiagnosticRelatedInformation] | None:
    """The witness: each event of the last repetition once, in order. None inside notebooks, whose cells have no path."""
    steps: list[dict[str, Any]] = finding.evidence.get("witness") or []
    if not steps or "cell" in finding.evidence:
        return None
    unique = {(step["event"], step["path"], step["line"]): step for step in steps}
    return [
        types.DiagnosticRelatedInformation(
            location=types.Location(
                uri=uris.from_fs_path(os.path.abspath(path)) or "",
                range=types.Range(
                    start=types.Position(line - 1, 0), end=types.Position(line - 1, 0)
                ),
            ),
            message=f"{event} in {step['function']}" if step.get("function") else event,
        )
        for (event, path, line), step in list(unique.items())[:_MOST_EVENTS]
    ]


def text_edits(before: str, after: str, codec: PositionCodec) -> list[types.TextEdit]:
    """The smallest edits of whole lines that lead from one text to the other."""
    old, new = split_lines(before), split_lines(after)
    matcher = SequenceMatcher(None, old, new, autojunk=False)
    return [
        types.TextEdit(
            range=_range(old, (first + 1, 1), (last + 1, 1), codec),
            new_text="".join(new[begin:end]),
        )
        for tag, first, last, begin, end in matcher.get_opcodes()
        if tag != "equal"
    ]


def explained(rule: Rule, finding: Finding | None = None) -> str:
    """The rule's document, short enough for a hover; with the finding's own message first."""
    title, *sections = page(rule).split("\n## ")
    head = title.split("\n", 1)[0].removeprefix("# ")
    parts = [f"**{head}** · {rule.severity.value}"]
    if finding is not None:
        parts.append(finding.message)
    for section in sections:
        heading, _, body = section.partition("\n")
        if heading not in _LEFT_OUT and body.strip():
            parts.append(f"**{heading}**\n\n{_without_links(body.strip())}")
    return "\n\n".join(parts)


def _without_links(text: str) -> str:
    """Links between pages lead nowhere from an editor; those to the web stay."""
    return re.sub(r"\[([^\]]+)\]\((?!https?:)[^)]*\)", r"\1", text)


def _range(
    lines: Sequence[str], start: tuple[int, int], end: tuple[int, int], codec: PositionCodec
) -> types.Range:
    return types.Range(start=_position(lines, *start, codec), end=_position(lines, *end, codec))


def _position(lines: Sequence[str], line: int, column: int, codec: PositionCodec) -> types.Position:
    """A place counted from 1 in characters, as the client counts it; past the end means the end."""
    if line <= len(lines):
        inside = lines[line - 1].rstrip("\r\n")[: column - 1]
        return types.Position(line - 1, codec.client_num_units(inside))
    if not lines or lines[-1].endswith(("\n", "\r")):
        return types.Position(len(lines), 0)
    return types.Position(len(lines) - 1, codec.client_num_units(lines[-1]))
