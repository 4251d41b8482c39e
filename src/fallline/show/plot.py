"""A picture in a terminal, with characters: each curve has its own mark, so that it needs no colour."""

from __future__ import annotations

from fallline.show.numbers import number, value
from fallline.show.picture import Bars, Lines
from fallline.show.terminal import Paint

__all__ = ["plot"]

_MARKS, _PLAIN_MARKS = "●○×+◆◇", "*ox+#@"
_COLOURS = ("red", "green", "blue", "yellow", "cyan", "bold")
_HEIGHT = 10


def plot(what: Lines | Bars, width: int, paint: Paint, *, plain: bool = False) -> list[str]:
    """The picture in lines of at most `width` characters; `plain` keeps to ASCII."""
    return (
        _bars(what, width, paint, plain)
        if isinstance(what, Bars)
        else _lines(what, width, paint, plain)
    )


def _lines(what: Lines, width: int, paint: Paint, plain: bool) -> list[str]:
    marks = _PLAIN_MARKS if plain else _MARKS
    side, corner, floor = ("|", "+", "-") if plain else ("│", "└", "─")
    labels = _labels(what)
    left = max(len(text) for text in labels.values())
    columns = width - left - 2
    cells: dict[tuple[int, int], list[int]] = {}
    for index, name in enumerate(what.curves):
        for column in range(columns):
            place = what.at(name, column / (columns - 1))
            if place is not None:
                cells.setdefault((round((_HEIGHT - 1) * (1 - place)), column), []).append(index)
    rows = [f"{what.names[1]}"] if what.names[1] else []
    for row in range(_HEIGHT):
        # where curves meet their marks take turns, so that none hides another
        here = {
            c: cells[row, c][c % len(cells[row, c])] for c in range(columns) if (row, c) in cells
        }
        drawn = "".join(
            paint(marks[here[c] % len(marks)], _COLOURS[here[c] % len(_COLOURS)])
            if c in here
            else " "
            for c in range(columns)
        ).rstrip()
        rows.append(f"{labels.get(row, ''):>{left}} {side}{drawn}")
    rows.append(f"{'':>{left}} {corner}{floor * columns}")
    low, high = number(what.x.low), number(what.x.high)
    between = columns - len(low) - len(high)
    rows.append(f"{'':>{left}}  {low}{what.names[0]:^{between}}{high}"[:width])
    keys = [
        f"{paint(marks[i % len(marks)], _COLOURS[i % len(_COLOURS)])} {name}"
        for i, name in enumerate(what.curves)
    ]
    lengths = [len(name) + 2 for name in what.curves]
    return rows + _flowed(keys, lengths, " " * (left + 2), width)


def _flowed(parts: list[str], lengths: list[int], indent: str, width: int) -> list[str]:
    """Parts side by side, as many as fit on a line. Lengths are given because colour counts no column."""
    lines, used = [indent], len(indent)
    for part, length in zip(parts, lengths, strict=True):
        if used > len(indent) and used + 3 + length > width:
            lines.append(indent)
            used = len(indent)
        gap = "   " if used > len(indent) else ""
        lines[-1] += gap + part
        used += len(gap) + length
    return lines


def _labels(what: Lines) -> dict[int, str]:
    """The numbers beside the vertical axis, by row."""
    found: dict[int, str] = {}
    for tick in what.y.ticks(4):
        row = round((_HEIGHT - 1) * (1 - what.y.place(tick)))
        if 0 <= row < _HEIGHT:
            found.setdefault(row, number(tick))
    return found or {0: number(what.y.high), _HEIGHT - 1: number(what.y.low)}


def _bars(what: Bars, width: int, paint: Paint, plain: bool) -> list[str]:
    left = min(max(len(side) for side in what.values), width // 3)
    shown = {side: value(size) for side, size in what.values.items()}
    room = width - left - max(map(len, shown.values())) - 2
    zero = what.axis.place(0.0) if not what.axis.log else 0.0
    rows = [f"{what.quantity}{' (each tenfold is one step)' if what.axis.log else ''}"[:width]]
    for index, (side, size) in enumerate(what.values.items()):
        length = abs(what.axis.place(size) - zero) * room
        bar = _blocks(length, plain)
        rows.append(
            f"{side[:left]:<{left}} {paint(bar, _COLOURS[index % len(_COLOURS)])} {shown[side]}"
        )
    return rows


def _blocks(length: float, plain: bool) -> str:
    if plain:
        return "#" * max(1, round(length)) if length > 0 else ""
    eighths = round(length * 8)
    whole, rest = divmod(max(1, eighths) if length > 0 else 0, 8)
    return "█" * whole + (" ▏▎▍▌▋▊▉"[rest] if rest else "")
