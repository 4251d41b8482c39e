"""An outcome in words, for a terminal: the claim, the two sides, a plot, the conclusion, each condition, the verdict."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence

from fallline.proof.picture import picture
from fallline.proof.record import Outcome
from fallline.show.numbers import value
from fallline.show.plot import plot
from fallline.show.terminal import Paint

__all__ = ["table", "text"]

_VERDICT = {
    "proved": "bold green",
    "refuted": "bold red",
    "failed": "bold red",
    "unavailable": "bold yellow",
}


def text(outcome: Outcome, width: int, paint: Paint, *, plain: bool = False) -> str:
    """The whole of it, in lines of at most `width` characters where words can be broken; `plain` keeps to ASCII."""
    dot = "-" if plain else "·"
    called = f" {outcome.name}" if outcome.name != outcome.of else ""
    parts = [[f"{paint(outcome.of + called, 'bold')} {dot} {outcome.specialist.name}"]]
    if outcome.claim:
        parts.append(_wrapped("Claim     ", outcome.claim, width))
    if outcome.taught:
        parts.append(_wrapped("Taught    ", f"{outcome.taught} (measured: not so)", width))
    if outcome.measured:
        parts.append(_table(outcome, width))
        drawn = picture(outcome)
        if drawn is not None:
            parts.append(plot(drawn, width, paint, plain=plain))
        parts.append(_wrapped("Measured  ", outcome.says, width))
        parts.append(
            [
                line
                for words, held in outcome.holds.items()
                for line in _condition(words, held, width, paint, plain)
            ]
        )
    parts.append(_verdict(outcome, width, paint))
    lines = "\n\n".join("\n".join(part) for part in parts if part)
    return lines.encode("ascii", "replace").decode() if plain else lines


def _condition(words: str, held: bool, width: int, paint: Paint, plain: bool) -> list[str]:
    if held:
        mark = paint("yes" if plain else "✓", "green")
    else:
        mark = paint("NO " if plain else "✗", "bold red")
    indent = 4 if plain else 2
    first, *rest = textwrap.wrap(words, width - indent)
    return [f"{mark} {first}", *(" " * indent + line for line in rest)]


def _verdict(outcome: Outcome, width: int, paint: Paint) -> list[str]:
    word = paint(outcome.verdict.upper(), _VERDICT[outcome.verdict])
    if outcome.measured:
        where = f"in {outcome.seconds:.1f} s ({outcome.machine}, torch {outcome.torch})"
        first, *rest = textwrap.wrap(where, width - len(outcome.verdict) - 1)
        return [f"{word} {first}", *rest]
    first, *rest = outcome.problem.strip().splitlines() or ["for an unknown reason"]
    return [
        f"{word}: {first}",
        *(textwrap.shorten(line, width) if len(line) > 4 * width else line for line in rest),
    ]


def _wrapped(head: str, words: str, width: int) -> list[str]:
    return textwrap.wrap(head + words, width, subsequent_indent=" " * len(head))


def table(outcome: Outcome) -> tuple[list[str], list[list[str]]]:
    """The sides beside each other: the heads, and one row for each quantity."""
    sides = list(outcome.sides)
    quantities = dict.fromkeys(q for values in outcome.sides.values() for q in values)
    rows = [
        [q, *(value(outcome.sides[s][q]) if q in outcome.sides[s] else "" for s in sides)]
        for q in quantities
    ]
    return ["", *sides], rows


_NARROWEST = 18  # of a quantity's name, before the numbers go one below the other


def _table(outcome: Outcome, width: int) -> list[str]:
    heads, rows = table(outcome)
    widths = [max(len(row[i]) for row in (heads, *rows)) for i in range(len(heads))]
    first = min(widths[0], width - sum(w + 2 for w in widths[1:]))
    if first < min(widths[0], _NARROWEST):
        return _list(heads[1:], rows, width)
    lines = []
    for row in (heads, *rows):
        name, *more = textwrap.wrap(row[0], first) or [""]
        cells = (f"{c:>{w}}" for c, w in zip(row[1:], widths[1:], strict=True))
        lines += ["  ".join([f"{name:<{first}}", *cells]).rstrip(), *more]
    return lines


def _list(sides: Sequence[str], rows: list[list[str]], width: int) -> list[str]:
    """The same numbers one below the other, where they do not fit side by side."""
    lines: list[str] = []
    for index, side in enumerate(sides, 1):
        lines.append(side)
        for row in rows:
            if row[index]:
                lines += textwrap.wrap(
                    f"{row[0]}: {row[index]}", width, initial_indent="  ", subsequent_indent="    "
                )
    return lines
