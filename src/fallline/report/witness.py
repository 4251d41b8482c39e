"""The witness: the events that led to a finding, in order, so that nobody has to take our word for it."""

from __future__ import annotations

from typing import Any

from fallline.finding import Finding
from fallline.report.terminal import Paint

__all__ = ["witness_lines"]


def witness_lines(finding: Finding, paint: Paint) -> list[str]:
    """What `--explain` prints under a finding; nothing for rules that look at one expression."""
    steps: list[dict[str, Any]] = finding.evidence.get("witness") or []
    if not steps:
        return [
            f"   {paint('seen in the expression itself; no order of events is involved', 'dim')}"
        ]
    settings = finding.evidence.get("settings") or []
    under = f" when {' and '.join(settings)}" if settings else ""
    lines = [f"   {paint(f'what happens, in order{under}:', 'bold')}"]
    places = [_place(step) for step in steps]
    width = max(len(place) for place in places)
    marked = _marked(finding, steps)
    for index, (step, place) in enumerate(zip(steps, places, strict=True)):
        called = step.get("called_from")
        through = f", called from {called[-1]}" if called else ""
        function = f"in {step['function']}" if step.get("function") else ""
        here = paint("  ◄ here", "bold red") if index == marked else ""
        line = f"   {index + 1:>3}  {step['event']:<15} {place:<{width}}  {paint(function + through, 'dim')}"
        lines.append(line.rstrip() + here)
    return lines


def _place(step: dict[str, Any]) -> str:
    cell = step.get("cell")
    return f"{step['path']}:{f'cell {cell}:' if cell is not None else ''}{step['line']}"


def _marked(finding: Finding, steps: list[dict[str, Any]]) -> int | None:
    """The first event on the finding's own line."""
    for index, step in enumerate(steps):
        if (
            step["path"] == finding.at.path
            and step["line"] == finding.at.line
            and step.get("cell") == finding.evidence.get("cell")
        ):
            return index
    return None
