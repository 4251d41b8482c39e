"""The witness: the events that led to a finding, in order, so that nobody has to take our word for it."""

from __future__ import annotations

from fallline.untrusted import printable

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from fallline.finding import Finding
    from fallline.show.terminal import Paint

    Step = dict[str, Any]

__all__ = ["witness_lines"]

_LONGEST_CYCLE = 10


def witness_lines(finding: Finding, paint: Paint) -> list[str]:
    """What `--explain` prints under a finding. Rules that look at one expression have no order of events."""
    steps: list[Step] = finding.evidence.get("witness") or []
    if not steps:
        return [
            f"   {paint('seen in the expression itself; no order of events is involved', 'dim')}"
        ]
    settings = finding.evidence.get("settings") or []
    under = f", when {' and '.join(settings)}" if settings else ""
    alone = len({_note(step) for step in steps}) == 1  # one function: named once, in the heading
    inside = f" in {steps[0]['function']}" if alone and steps[0].get("function") else ""
    lines = [f"   {paint(f'what happens{inside}, in order{under}:', 'bold')}"]
    width = max(len(_place(step)) for step in steps)
    marked = _marked(finding, steps)
    for start, length, times in _cycles(
        [(step["event"], _place(step), _note(step)) for step in steps]
    ):
        for offset in range(length):
            step = steps[start + offset]
            here = paint("  ◄ here", "bold red") if start + offset == marked else ""
            note = "" if alone else paint(_note(step), "dim")
            rail = _rail(offset, length, times)
            lines.append(
                f"   {rail} {step['event']:<15} {_place(step):<{width}} {note}".rstrip() + here
            )
    return lines


def _rail(offset: int, length: int, times: int) -> str:
    """Repeated events are drawn once, with a bracket and how often: `3× ┌`."""
    if times == 1:
        return "     "
    count = f"{times}×" if offset == 0 else ""
    bracket = "─" if length == 1 else "┌" if offset == 0 else "└" if offset == length - 1 else "│"
    return f"{count:>3} {bracket}"


def _place(step: Step) -> str:
    cell = step.get("cell")
    return (
        f"{printable(step['path'], '')}:{f'cell {cell}:' if cell is not None else ''}{step['line']}"
    )


def _note(step: Step) -> str:
    """In which function, and from where it was called."""
    function = f" in {step['function']}" if step.get("function") else ""
    called = step.get("called_from")
    return f"{function}, called from {called[-1]}" if called else function


def _marked(finding: Finding, steps: list[Step]) -> int | None:
    """The first event on the finding's own line."""
    home = (finding.at.path, finding.at.line, finding.evidence.get("cell"))
    places = [(step["path"], step["line"], step.get("cell")) for step in steps]
    return places.index(home) if home in places else None


def _cycles(keys: list[tuple[str, ...]]) -> list[tuple[int, int, int]]:
    """The sequence as (start, length, times): the widest repetition from each place on, drawn once."""
    found = []
    at = 0
    while at < len(keys):
        best = (1, 1)
        for length in range(1, _LONGEST_CYCLE + 1):
            times = 1
            while keys[at : at + length] == keys[at + times * length : at + (times + 1) * length]:
                times += 1
            if times > 1 and length * times > best[0] * best[1]:
                best = (length, times)
        found.append((at, *best))
        at += best[0] * best[1]
    return found
