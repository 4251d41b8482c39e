"""One line for one finding: `train.py:12:5: FL104 [*] message`."""

from __future__ import annotations

from fallline.check.outcome import Outcome
from fallline.report.place import where
from fallline.report.witness import witness_lines
from fallline.show.terminal import SEVERITY_STYLE, Paint
from fallline.untrusted import printable

__all__ = ["render"]


def render(outcome: Outcome, paint: Paint, *, explain: bool = False) -> str:
    """All findings in order of place; `[*]` marks what `--fix` can fix."""
    if not outcome.shown:
        return ""
    lines = []
    for finding in outcome.shown:
        mark = " [*]" if finding.fix is not None and finding.fix.safe else ""
        code = paint(finding.code, SEVERITY_STYLE[finding.severity.value])
        lines.append(
            f"{paint(where(finding), 'bold')}: {code}{mark} {printable(' '.join(finding.message.split()))}"
        )
        if explain:
            lines += witness_lines(finding, paint)
    return "\n".join(lines) + "\n"
