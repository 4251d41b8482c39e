"""Comments that silence a finding where it is.

x = f()  # noqa                             everything on this statement
x = f()  # noqa: FL104                      these codes (also FL1); other tools' codes are left to them
x = f()  # fallline: ignore[FL104]          the same, and no other tool touches it; names work too
# fallline: ignore-file                     the whole file
# fallline: ignore-file[FL1]                these codes in the whole file
"""

from __future__ import annotations

import re

from fallline.check.sources import Text
from fallline.finding import Finding

__all__ = ["silenced"]

_NOQA = re.compile(
    r"#\s*noqa(?P<colon>\s*:\s*(?P<codes>[A-Za-z]+[0-9]+(?:[\s,]+[A-Za-z]+[0-9]+)*))?",
    re.IGNORECASE,
)
_IGNORE = re.compile(r"#\s*fallline:\s*ignore(?!-file)(?:\[(?P<codes>[^\]]*)\])?", re.IGNORECASE)
_IGNORE_FILE = re.compile(
    r"^[ \t]*#[ \t]*fallline:[ \t]*ignore-file(?:\[(?P<codes>[^\]]*)\])?",
    re.IGNORECASE | re.MULTILINE,
)
_ANY = re.compile(r"#[ \t]*(?:noqa|fallline:)", re.IGNORECASE)


def silenced(finding: Finding, text: Text | None) -> bool:
    """Whether a comment on the finding's lines, on its statement's first or last line, or for the file, silences it."""
    if text is None or not _ANY.search(text.source.text):
        return False
    if any(_means(match["codes"], finding) for match in _IGNORE_FILE.finditer(text.source.text)):
        return True
    span = text.span(finding.at.line)
    lines = {finding.at.line, finding.at.end_line or finding.at.line, span.first, span.last}
    return any(_on_line(text.line(number), finding) for number in lines)


def _on_line(line: str, finding: Finding) -> bool:
    for pattern in (_NOQA, _IGNORE):
        for match in pattern.finditer(line):
            if _means(match["codes"], finding):
                return True
    return False


def _means(codes: str | None, finding: Finding) -> bool:
    """No codes mean all of them."""
    if codes is None:
        return True
    wanted = [code for code in re.split(r"[\s,]+", codes.strip()) if code]
    return any(
        code.lower() == finding.name
        or (code.upper().startswith("FL") and finding.code.startswith(code.upper()))
        for code in wanted
    )
