"""Pasted training logs as columns of numbers: `epoch 3 loss: 0.5`, `{'loss': 0.5}`, progress bars, `loss: 0.5 - val_loss: 0.7`, and tables.

Only what training logs is read: losses, scores, gradient norms, learning rates, loss scales and memory. Each column knows whether it is of training or of validation,
and where in the run its values are, as far as the lines say so.
"""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Iterator
from dataclasses import dataclass, field

__all__ = ["Column", "columns", "log_lines"]

_VALUE = r"[-+]?(?:\d[\d,]*\.?\d*|\.\d+)(?:e[+-]?\d+)?|[-+]?(?:nan|inf)"
_SCORES = r"acc(?:uracy)?\d?|top-?[15]|auc|f1|m?iou|m?ap(?:50)?|dice|psnr|bleu|reward|return"
_KINDS = {
    "scale": re.compile(r"(?i)scale"),
    "norm": re.compile(r"(?i)norm"),
    "rate": re.compile(r"(?i)(?:^|_)lr$|learning ?_?rate"),
    "memory": re.compile(r"(?i)mem"),
    "loss": re.compile(r"(?i)loss|^cost$"),
    "score": re.compile(rf"(?i)(?:^|[_/ ])(?:{_SCORES})(?:$|[_/@ ])"),
}
_NAME = rf"(?:[\w./@]*(?:loss|norm|scale|mem(?:ory)?)\w*|(?:\w+_)?(?:lr|{_SCORES})|cost|learning[ _]?rate)"
_SPLIT = r"(?:train(?:ing)?|val(?:id(?:ation)?)?|test|eval(?:uation)?|dev)"
_PAIR = re.compile(
    rf"(?i)(?:\b(?P<split>{_SPLIT})[\s:_/|-]{{1,3}})?(?<![\w.])(?P<grad>grad(?:ient)?[ _])?(?P<name>{_NAME})(?:\([^)]*\))?['\"]?\s*(?:[:=]\s*|\s+)(?:tensor\()?"
    rf"(?P<value>{_VALUE})(?P<unit>\s*[KMGT]i?B?\b|%)?(?:\s*\((?P<mean>{_VALUE})\))?(?![\w/]|\.[.\d])"
)
_AT = re.compile(
    r"(?i)(?<![/\w])(?P<what>epoch|iter(?:ation)?|(?:global[ _])?step|batch)s?['\"]?[\s:=\[#]*(?P<n>\d[\d,]*(?:\.\d+)?)"
)
# `Epoch [1][240/735]`: the epoch, and how many of its batches
_OF_EPOCH = re.compile(
    r"(?i)\bepoch(?:\(\w+\))?:?\s*\[?(\d+)(?:/\d+)?\]?[\s:,]*\[\s*(\d+)\s*/\s*\d+\]"
)
_VALIDATION = re.compile(
    r"(?i)(?:^|[^a-z])(?:val|valid|validation|test|eval|evaluation|dev)(?:[^a-z]|$)"
)
_UNITS = {"K": 2.0**-10, "M": 1.0, "G": 2.0**10, "T": 2.0**20}
_CELLS = re.compile(r"\s*\|\s*|\t+|\s{2,}|\s*,\s+")
_FEWEST = 3  # lines that make a log
_LONG = 80  # characters: a sentence also names a loss and an epoch
_MOST = 2000  # lines that are looked at
_LARGEST = 20_000  # what looks like a column of code or of an array is not looked at further


@dataclass(slots=True)
class Column:
    """The values of one quantity, in their order, each with its place in the run ("iteration 865") where the line gives one."""

    name: str
    kind: str
    validation: bool
    values: list[float] = field(default_factory=list)
    at: list[str] = field(default_factory=list)
    beside: list[float] = field(default_factory=list)  # running means in brackets

    @property
    def finite(self) -> list[float]:
        return [v for v in self.values if math.isfinite(v)]


def columns(text: str) -> list[Column]:
    """The columns of all logs in a text: of three values, or of two if one is not finite and both have their place."""
    lines = text[:_LARGEST].splitlines()[:_MOST]
    found: dict[tuple[str, bool], Column] = {}
    where = ""
    for line in lines:
        here = _place(line)
        pairs = list(_pairs(line))
        if here and not pairs:
            where = here  # `Epoch 3/100`, and what belongs to it in the next line
        for name, validation, value, mean in pairs:
            kind = _kind(name)
            column = found.setdefault((name, validation), Column(name, kind, validation))
            column.values.append(value)
            column.at.append(here or where)
            if mean is not None:
                column.beside.append(mean)
    logged = [c for c in map(_of_lines, found.values()) if _tells(c)]
    return [_first_run(c) for c in [*logged, *_tables(lines)]]


def log_lines(lines: list[str]) -> set[int]:
    """Which lines are those of a log: at least three with numbers of training, each with its place in the run or with several numbers."""
    numbered = set()
    for n, line in enumerate(lines):
        pairs = sum(1 for _ in _PAIR.finditer(line))
        if pairs > 1 or (pairs == 1 and _place(line) and len(line) < _LONG):
            numbered.add(n)
    return numbered if len(numbered) >= _FEWEST else set()


def _tells(column: Column) -> bool:
    few = len(column.values) == 2 and all(column.at) and len(column.finite) == 1
    return len(column.values) >= _FEWEST or few


def _of_lines(column: Column) -> Column:
    """Without what was said in a sentence, where the lines of a log give their places."""
    placed = [n for n, at in enumerate(column.at) if at]
    if len(placed) >= _FEWEST:
        column.values = [column.values[n] for n in placed]
        column.at = [column.at[n] for n in placed]
    return column


def _kind(name: str) -> str:
    return next((kind for kind, pattern in _KINDS.items() if pattern.search(name)), "")


def _place(line: str) -> str:
    """The finest place that a line names."""
    if (of_epoch := _OF_EPOCH.search(line)) is not None:
        return f"epoch {of_epoch[1]}, iteration {of_epoch[2]}"
    places = {m["what"].lower(): m["n"] for m in _AT.finditer(line)}
    for what in ("iteration", "iter", "step", "global step", "global_step", "batch", "epoch"):
        if what in places:
            said = "iteration" if what == "iter" else what.rpartition("global")[2].strip(" _")
            return f"{said} {places[what]}"
    return ""


def _pairs(line: str) -> Iterator[tuple[str, bool, float, float | None]]:
    """Each quantity in a line: its name, whether it is of validation, its value, and the running mean beside it."""
    for match in _PAIR.finditer(line):
        name = f"{match['grad'] or ''}{match['name']}".lower().strip("_./")
        split = (match["split"] or "").lower()
        validation = bool(_VALIDATION.search(f"{split} {name}"))
        mean = None if match["mean"] is None else _number(match["mean"], None)
        unit = match["unit"] if _kind(name) == "memory" else None  # `loss 0.95 T=20 s` is no size
        yield name, validation, _number(match["value"], unit), mean


def _number(text: str, unit: str | None) -> float:
    value = float(text.replace(",", ""))
    size = _UNITS.get((unit or " ").strip()[:1].upper(), 1.0)
    return value * size


def _tables(lines: list[str]) -> Iterator[Column]:
    """The columns under a head of names: rows of as many numbers."""
    for n, line in enumerate(lines):
        head = _cells(line)
        kinds = [_kind(cell) if not any(c.isdigit() for c in cell[:1]) else "" for cell in head]
        if sum(map(bool, kinds)) < 2 and not (any(kinds) and _epoch(head)):
            continue
        rows = list(_rows(lines[n + 1 :], len(head)))
        if len(rows) < _FEWEST:
            continue
        for place, (cell, kind) in enumerate(zip(head, kinds, strict=True)):
            if kind:
                at = [f"{head[0].lower()} {row[0]:g}" if _epoch(head) else "" for row in rows]
                values = [row[place] for row in rows]
                yield Column(cell.lower(), kind, bool(_VALIDATION.search(cell)), values, at)


def _epoch(head: list[str]) -> bool:
    return head[:1] != [] and head[0].lower().rstrip("s") in ("epoch", "step", "iteration", "iter")


def _cells(line: str) -> list[str]:
    return [cell for cell in _CELLS.split(line.strip().strip("|")) if cell]


def _rows(lines: list[str], width: int) -> Iterator[list[float]]:
    for line in lines:
        if not line.strip() or set(line) <= set("-|:= \t+"):
            continue
        try:
            row = [_number(cell.rstrip("%"), None) for cell in _cells(line)]
        except ValueError:
            return
        if len(row) != width:
            return
        yield row


def _first_run(column: Column) -> Column:
    """Where two runs were pasted after each other the count starts again: the first run is the one that is read."""
    places = [_numbers_in(at) for at in column.at]
    for n, (one, two) in enumerate(itertools.pairwise(places), 1):
        again = bool(one and two) and two < one and two <= (places[0] or [0.0])
        if again and n >= _FEWEST:
            column.values, column.at = column.values[:n], column.at[:n]
            break
    return column


def _numbers_in(place: str) -> list[float]:
    """`epoch 1, iteration 240` as numbers that can be compared."""
    return [
        float(n.replace(",", ""))
        for n in re.findall(r"\d[\d,]*(?:\.\d+)?(?=\D|$)", place.replace(", ", " "))
    ]
