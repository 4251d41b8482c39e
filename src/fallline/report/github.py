"""GitHub Actions annotations. GitHub shows ten errors and ten warnings of a step, so the worst come first."""

from __future__ import annotations

import os

from fallline.check.outcome import Outcome
from fallline.report.place import where
from fallline.show.terminal import Paint
from fallline.untrusted import printable

__all__ = ["render"]

_LEVEL = {"error": "error", "warning": "warning", "info": "notice"}


def render(outcome: Outcome, paint: Paint, *, explain: bool = False) -> str:
    """One workflow command for one finding."""
    if not outcome.findings:
        return ""
    lines = []
    for finding in sorted(outcome.findings, key=lambda f: f.severity.rank):
        at = finding.at
        place = {"title": f"fallline ({finding.code})", "file": at.path.replace(os.sep, "/")}
        if "cell" in finding.evidence:
            place["line"] = "1"  # GitHub knows lines of the file, not of a cell
        else:
            place |= {"line": str(at.line), "col": str(at.column)}
            place |= {
                "endLine": str(at.end_line or at.line),
                "endColumn": str(at.end_column or at.column),
            }
        properties = ",".join(f"{key}={_property(value)}" for key, value in place.items())
        message = f"{where(finding)}: {finding.code} {finding.name}: {finding.message}"
        if finding.fix is not None:
            message += f"\nfix: {finding.fix.title}"
        lines.append(f"::{_LEVEL[finding.severity.value]} {properties}::{_data(message)}")
    return "\n".join(lines) + "\n"


def _data(text: str) -> str:
    return printable(text).replace("%", "%25").replace("\n", "%0A")


def _property(text: str) -> str:
    return _data(text).replace(":", "%3A").replace(",", "%2C")
