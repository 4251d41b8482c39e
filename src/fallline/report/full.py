"""For a person at a terminal: the excerpt with carets, why it is wrong, and the fix as a diff."""

from __future__ import annotations

import os

from fallline.check.outcome import Outcome
from fallline.report.place import lines_around, where
from fallline.report.witness import witness_lines
from fallline.rules import rule_by_code
from fallline.show.terminal import SEVERITY_STYLE, Paint, counted
from fallline.untrusted import printable

TYPE_CHECKING = False
if TYPE_CHECKING:
    from fallline.finding import Finding

__all__ = ["render", "summary"]

_AROUND = 2  # lines of context above and below
_ENOUGH = 60  # characters that say something


def render(outcome: Outcome, paint: Paint, *, explain: bool = False) -> str:
    """Every finding in full, then one line that sums up."""
    blocks = [_block(finding, outcome, paint, explain) for finding in outcome.shown]
    return "\n".join([*blocks, summary(outcome)]) + "\n"


def summary(outcome: Outcome) -> str:
    """`Found 2 errors and 1 warning in 3 files. 2 can be fixed with --fix. 7 notes: --show-notes lists them.`"""
    files = counted(outcome.files, "file")
    if not outcome.findings and not outcome.files:
        return "Nothing was read: there is no .py or .ipynb file."
    kinds = [f.severity.value for f in outcome.shown]
    nouns = (("error", "error"), ("warning", "warning"), ("info", "note"))
    parts = ", ".join(counted(kinds.count(kind), noun) for kind, noun in nouns if kind in kinds)
    fixable = sum(f.fix is not None and f.fix.safe for f in outcome.findings)
    tail = f" {fixable} can be fixed with --fix." if fixable else ""
    if hidden := len(outcome.findings) - len(kinds):
        tail += f" {counted(hidden, 'note')}: --show-notes lists {'it' if hidden == 1 else 'them'}."
    if not parts:
        return f"Nothing found in {files}.{tail}"
    return f"Found {' and '.join(parts.rsplit(', ', 1))} in {files}.{tail}"


def _block(finding: Finding, outcome: Outcome, paint: Paint, explain: bool) -> str:
    style = SEVERITY_STYLE[finding.severity.value]
    mark = " [*]" if finding.fix is not None and finding.fix.safe else ""
    source = lines_around(finding, outcome)
    last = min((finding.at.end_line or finding.at.line) + _AROUND, len(source))
    gutter = len(str(max(last, 1)))
    lines = [
        f"{paint(finding.code, style)}{mark} {paint(finding.name, 'bold')}: {printable(finding.message)}",
        f"{' ' * gutter}{paint('-->', 'blue')} {where(finding)}",
        *_excerpt(finding, source, gutter, paint),
    ]
    rule = rule_by_code(finding.code)
    if rule is not None:
        lines.append(f"{paint('why:', 'cyan')} {_sentence(rule.why)}")
    if explain:
        lines += witness_lines(finding, paint)
    lines += _fix(finding, source, paint)
    return "\n".join(lines) + "\n"


def _sentence(text: str) -> str:
    """The first sentence, or more where it is very short; the whole text is one `fallline rule` away."""
    import re

    said = ""
    for sentence in re.split(r"(?<=[.!?])\s", " ".join(text.split())):
        said = f"{said} {sentence}".strip()
        if len(said) >= _ENOUGH:
            break
    return said


def _excerpt(finding: Finding, source: list[str], gutter: int, paint: Paint) -> list[str]:
    first, end = finding.at.line, finding.at.end_line or finding.at.line
    if not 0 < first <= len(source) or not any(map(str.strip, source)):
        return []  # a file that is not there, or empty
    bar = paint("|", "blue")
    rows = [f"{' ' * gutter} {bar}"]
    for number in range(max(1, first - _AROUND), min(end + _AROUND, len(source)) + 1):
        text = printable(source[number - 1]).replace("\t", "    ")
        rows.append(f"{paint(f'{number:>{gutter}}', 'blue')} {bar} {text}".rstrip())
        if number == first:
            rows.append(
                f"{' ' * gutter} {bar} {paint(_carets(finding, source[number - 1]), 'red')}"
            )
    rows.append(f"{' ' * gutter} {bar}")
    return rows


def _carets(finding: Finding, line: str) -> str:
    """Under the finding's part of its first line; tabs count as the four spaces they are shown as."""
    start = finding.at.column - 1
    ends_here = (finding.at.end_line or finding.at.line) == finding.at.line
    stop = (finding.at.end_column or finding.at.column + 1) - 1 if ends_here else len(line)
    before, under = (piece.replace("\t", "    ") for piece in (line[:start], line[start:stop]))
    return " " * _width(before) + "^" * max(1, _width(under))


def _width(text: str) -> int:
    """Columns on a terminal: East Asian characters take two."""
    if text.isascii():
        return len(text)
    from unicodedata import combining, east_asian_width

    return sum(0 if combining(c) else 2 if east_asian_width(c) in "WF" else 1 for c in text)


def _fix(finding: Finding, source: list[str], paint: Paint) -> list[str]:
    if finding.fix is None:
        return []
    import difflib

    # imported here: a check that finds nothing to do shall start quickly
    from fallline.syntax.edits import apply

    unsafe = (
        ""
        if finding.fix.safe
        else paint(" (may change what the code means: applied only with --unsafe-fixes)", "dim")
    )
    head = [f"{paint('fix:', 'cyan')} {finding.fix.title}{unsafe}"]
    here = [edit for edit in finding.fix.edits if edit.path in (None, finding.at.path)]
    after = apply("".join(line + "\n" for line in source), here)
    if after is None or len(here) < len(finding.fix.edits):
        others = sorted({edit.path for edit in finding.fix.edits if edit.path} - {finding.at.path})
        return (
            [*head, f"     changes {', '.join(printable(os.path.relpath(p), '') for p in others)}"]
            if others
            else head
        )
    rows = []
    for line in list(
        difflib.unified_diff(source, after.removesuffix("\n").split("\n"), lineterm="", n=1)
    )[2:]:
        style = {"+": "green", "-": "red", "@": "dim"}.get(line[0], "")
        text = printable(line)
        rows.append("  " + (paint(text, style) if style else text))
    return head + rows
