"""How near a question is in meaning to what the claims answer, in whatever words: "is worse in eval mode", and "accuracy drops after model.eval()".

`meaning.bin` holds a vector for each of some thousand words and pairs of words; the vector of a text is the sum of theirs, and two texts are near each other if their vectors point the same way. The table was learnt
from a sentence encoder and from the wordings of the claims (scripts/meaning.py; origin and licence are in meaning.LICENSE). All of it is whole numbers, so that every machine and every version of Python finds the same.
"""

from __future__ import annotations

import math
import sys
from array import array
from collections.abc import Iterable, Sequence
from functools import cache
from itertools import pairwise
from operator import mul
from pathlib import Path
from typing import NamedTuple

from fallline.triage.claim import claims
from fallline.triage.kept import kept
from fallline.triage.words import root, tokens_each

__all__ = ["nearness"]

_TABLE = Path(__file__).parent / "meaning.bin"
_LENGTH = 200  # of every vector, in whole numbers
_MOST = 127
_ZERO = 128  # what is added to the numbers of a row, so that none is negative
_ANSWER = 0.4  # what being near the answer counts, beside being near a wording
_ASKED = 0.5  # and what being near the part that asks counts, beside all of it
_FIRST = 32  # numbers of a vector that tell most of it: the table puts them first
_NEAR = 120  # claims that are compared by whole vectors: the others are far

if sys.version_info >= (3, 12):
    from math import sumprod as _dot
else:

    def _dot(one: Iterable[int], two: Iterable[int], /) -> int:
        return sum(map(mul, one, two))


class _Table(NamedTuple):
    """A row of numbers for each word and pair of words, and what it is multiplied by."""

    width: int
    rows: dict[str, int]
    scale: bytes
    numbers: bytes


@cache
def _table() -> _Table:
    head, _, rest = _TABLE.read_bytes().partition(b"\n")
    width, count, letters = map(int, head.split())
    names = rest[:letters].decode().split("\n")
    scale, numbers = rest[letters : letters + count], rest[letters + count :]
    return _Table(width, dict(zip(names, range(count), strict=True)), scale, numbers)


@cache
def _row(n: int) -> int:
    """A row as one long number, 32 bits for each of its own: adding two of those adds all of them at once."""
    table = _table()
    numbers = table.numbers[n * table.width : (n + 1) * table.width]
    return table.scale[n] * int.from_bytes(array("I", list(numbers)).tobytes(), sys.byteorder)


def _vector(words: Sequence[str]) -> array[int]:
    """The vector of a text by its words; where none is known, only zeros."""
    table = _table()
    rows = table.rows
    known = (word if word in rows else root(word) for word in words)
    found = [n for word in known if (n := rows.get(word)) is not None]
    pairs = map(" ".join, pairwise(words))
    found += [n for pair in pairs if (n := rows.get(pair)) is not None]
    added = array("I")
    added.frombytes(sum(map(_row, found)).to_bytes(4 * table.width, sys.byteorder))
    zero = _ZERO * sum(table.scale[n] for n in found)
    total = [number - zero for number in added]
    top = max(map(abs, total)) or 1
    by = min(_LENGTH / (math.sqrt(_dot(total, total)) or 1.0), _MOST / top)
    return array("b", [round(by * number) for number in total])


class _Vectors(NamedTuple):
    """Many vectors one after the other; and of each of their first numbers, those of all of them as one long number."""

    rows: memoryview
    columns: list[int]
    many: int


class _Index(NamedTuple):
    """The vectors of all wordings and those of the answers, and where each claim's wordings begin."""

    wordings: _Vectors
    answers: _Vectors
    begins: tuple[int, ...]


@cache
def _index() -> _Index:
    (wordings, asks), (answers, says), begins = kept("meaning", _indexed)
    return _Index(_vectors(wordings, asks), _vectors(answers, says), begins)


def _vectors(rows: bytes, columns: list[bytes]) -> _Vectors:
    numbers = [int.from_bytes(column, sys.byteorder) for column in columns]
    return _Vectors(memoryview(rows).cast("b"), numbers, len(rows) // _table().width)


def _with_columns(rows: bytes) -> tuple[bytes, list[bytes]]:
    """As in `_row`: 32 bits for each number, and none of them negative."""
    width = _table().width
    columns = (rows[n::width] for n in range(_FIRST))
    return rows, [array("I", [byte ^ _ZERO for byte in column]).tobytes() for column in columns]


def _indexed() -> tuple[tuple[bytes, list[bytes]], tuple[bytes, list[bytes]], tuple[int, ...]]:
    asks = tokens_each(ask for claim in claims() for ask in claim.asks)
    says = tokens_each(claim.says for claim in claims())
    begins = [0]
    for claim in claims():
        begins.append(begins[-1] + len(claim.asks))
    wordings, answers = (b"".join(_vector(t).tobytes() for t in said) for said in (asks, says))
    return _with_columns(wordings), _with_columns(answers), tuple(begins)


def nearness(whole: str, asked: str) -> dict[int, float]:
    """How near a question is to the claims that are nearest to it (at most about 1): all of it, and the part of it that asks."""
    index, width = _index(), _table().width
    all_of_it, part = map(_vector, tokens_each([whole, asked]))
    if not any(all_of_it):
        return {}
    rough = _roughly(all_of_it, index)
    nearest = sorted(range(len(rough)), key=rough.__getitem__, reverse=True)[:_NEAR]
    near = {n: _near(all_of_it, n, index, width) for n in nearest}
    if part == all_of_it:
        return near
    return {n: (1 - _ASKED) * near[n] + _ASKED * _near(part, n, index, width) for n in nearest}


def _roughly(asked: array[int], index: _Index) -> list[float]:
    """How near the beginning of a vector is to every claim."""
    wordings, said = _dots(asked, index.wordings), _dots(asked, index.answers)
    best = (max(wordings[at:end], default=0) for at, end in pairwise(index.begins))
    return [_joined(one, other) for one, other in zip(best, said, strict=True)]


def _dots(asked: array[int], vectors: _Vectors) -> list[int]:
    """The products of its beginning with all of them: each number is multiplied with a whole column at once."""
    parts = [(number, column) for number, column in zip(asked, vectors.columns, strict=False)]
    above = _numbers(sum(number * column for number, column in parts if number > 0), vectors)
    below = _numbers(sum(-number * column for number, column in parts if number < 0), vectors)
    zero = _ZERO * sum(number for number, _ in parts)
    return [more - less - zero for more, less in zip(above, below, strict=True)]


def _numbers(packed: int, vectors: _Vectors) -> array[int]:
    found = array("I")
    found.frombytes(packed.to_bytes(4 * vectors.many, sys.byteorder))
    return found


def _near(asked: array[int], n: int, index: _Index, width: int) -> float:
    """How near a vector is to a claim: to its nearest wording, and to its answer."""
    rows = index.wordings.rows
    begins = range(width * index.begins[n], width * index.begins[n + 1], width)
    best = max((_dot(asked, rows[at : at + width]) for at in begins), default=0)
    said = _dot(asked, index.answers.rows[n * width : (n + 1) * width])
    return _joined(best, said)


def _joined(asked: int, said: int) -> float:
    return (asked + _ANSWER * said) / ((1 + _ANSWER) * _LENGTH**2)
