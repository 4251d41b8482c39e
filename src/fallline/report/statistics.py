"""How often each rule was found: the overview for a project that is checked for the first time."""

from __future__ import annotations

from collections import Counter

from fallline.check.outcome import Outcome
from fallline.show.terminal import SEVERITY_STYLE, Paint

__all__ = ["render"]


def render(outcome: Outcome, paint: Paint) -> str:
    """Count, code, `[*]` where all can be fixed, name; most frequent first."""
    counts = Counter(f.code for f in outcome.findings)
    first = {f.code: f for f in reversed(outcome.findings)}
    fixable = {
        code
        for code in counts
        if all(f.fix is not None for f in outcome.findings if f.code == code)
    }
    rows = []
    for code, count in sorted(counts.items(), key=lambda item: (-item[1], item[0])):
        finding = first[code]
        mark = "[*]" if code in fixable else "[ ]"
        rows.append(
            f"{count:>6}  {paint(code, SEVERITY_STYLE[finding.severity.value])}  {mark}  {finding.name}"
        )
    return "".join(row + "\n" for row in rows)
