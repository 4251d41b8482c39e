"""Lines whose comment says that they are meant so: what looks like a slip there is a choice, and a note."""

from __future__ import annotations

import re
from dataclasses import replace

from fallline.check.sources import Sources
from fallline.finding import Finding, Severity

__all__ = ["noted_if_meant"]

_MEANT = re.compile(
    r"#.*\b(on purpose|intentional(ly)?|deliberate(ly)?|by design|as in the (original|paper)|(we|do) ?(don'?t|not) (train|update) "
    r"|behaves? (identically|the same))",
    re.I,
)


def noted_if_meant(finding: Finding, sources: Sources) -> Finding:
    """A note where the comment at the line, or right above it, says that it is no slip."""
    if finding.severity is Severity.INFO or finding.code == "FL000":
        return finding
    text = sources.text(finding.at.path)
    if text is None:
        return finding
    said = [text.line(finding.at.line)]
    above = finding.at.line - 1
    while text.line(above).lstrip().startswith("#") and len(said) < 4:
        said.append(text.line(above))
        above -= 1
    if not any(map(_MEANT.search, said)):
        return finding
    message = f"{finding.message} A comment there says that it is meant so."
    return replace(finding, severity=Severity.INFO, message=message)
