"""Where a finding is, in words and in lines of text."""

from __future__ import annotations

from fallline.untrusted import printable

TYPE_CHECKING = False
if TYPE_CHECKING:
    from fallline.check.outcome import Outcome
    from fallline.finding import Finding

__all__ = ["lines_around", "where"]


def where(finding: Finding) -> str:
    """`train.py:3:5`, or `nb.ipynb:cell 3:2:8` in a notebook."""
    cell = finding.evidence.get("cell")
    middle = f"cell {cell}:" if cell is not None else ""
    return f"{printable(finding.at.path, keep='')}:{middle}{finding.at.line}:{finding.at.column}"


def lines_around(finding: Finding, outcome: Outcome) -> list[str]:
    """The lines that the finding's line numbers count: of its file, or of its cell."""
    text = outcome.sources.text(finding.at.path) if outcome.sources is not None else None
    if text is None:
        return []
    cell = finding.evidence.get("cell")
    if cell is not None:
        return text.lines_of_cell(cell)
    lines = text.source.lines
    # what follows the last line end is not a line
    return lines[:-1] if len(lines) > 1 and not lines[-1] else lines
