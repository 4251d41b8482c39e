"""How near a question is in meaning to what the claims answer, in whatever words: "is worse in eval mode", and "accuracy drops after model.eval()".

`meaning.bin` holds a vector for each of some thousand words and pairs of words; the vector of a text is the sum of theirs, and two texts are near each other if their vectors point the same way. The table was learnt
from a sentence encoder and from the wordings of the claims (scripts/meaning.py; origin and licence are in meaning.LICENSE). All of it is whole numbers, so that every machine and every version of Python finds the same.
"""

from __future__ import annotations

import math
import sys
from array import array
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from operator import mul
from pathlib import Path

from fallline.triage.claim import claims
from fallline.triage.kept import kept
from fallline.triage.words import root, tokens_each

__all__ = ["nearness"]

_TABLE = Path(__file__).parent / "meaning.bin"
_LENGTH = 200  # of every vector, in whole numbers
_MOST = 127
_ZERO = 128  # what is added to the numbers of a row, so that none is negative
_ANSWER = 0.4  # what being near the answer counts, beside being near a wording
_ASKED = 0.25  # and what being near the part that asks counts, beside all of it
_FIRST = 32  # numbers of a vector that tell most of it: the table puts them first
_NEAR = 120  # claims that are compared by whole vectors: the others are far

if sys.version_info >= (3, 12):
    from math import sumprod as _dot
else:

    def _dot(one: Iterable[int], two: Iterable[int], /) -> int:
        return sum(map(mul, one, two))


@dataclass(frozen=True, slots=True)
class _Table:
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


@dataclass(frozen=True, slots=True)
class _Index:
    """The vectors of all wordings, one after the other, those of the answers, and where each claim's wordings begin."""

    wordings: memoryview
    answers: memoryview
    begins: tuple[int, ...]


@cache
def _index() -> _Index:
    wordings, answers, begins = kept("meaning", _indexed)
    return _Index(memoryview(wordings).cast("b"), memoryview(answers).cast("b"), begins)


def _indexed() -> tuple[bytes, bytes, tuple[int, ...]]:
    asks = tokens_each(ask for claim in claims() for ask in claim.asks)
    says = tokens_each(claim.says for claim in claims())
    begins = [0]
    for claim in claims():
        begins.append(begins[-1] + len(claim.asks))
    wordings, answers = (b"".join(_vector(t).tobytes() for t in said) for said in (asks, says))
    return wordings, answers, tuple(begins)


def nearness(whole: str, asked: str) -> dict[int, float]:
    """How near a question is to the claims that are nearest to it (at most about 1): all of it, and the part of it that asks."""
    index, width = _index(), _table().width
    all_of_it, part = map(_vector, tokens_each([whole, asked]))
    if not any(all_of_it):
        return {}
    rough = [_near(all_of_it[:_FIRST], n, index, width) for n in range(len(index.begins) - 1)]
    nearest = sorted(range(len(rough)), key=lambda n: -rough[n])[:_NEAR]
    near = {n: _near(all_of_it, n, index, width) for n in nearest}
    if part == all_of_it:
        return near
    return {n: (1 - _ASKED) * near[n] + _ASKED * _near(part, n, index, width) for n in nearest}


def _near(asked: array[int], n: int, index: _Index, width: int) -> float:
    """How near a vector, or the beginning of one, is to a claim: to its nearest wording, and to its answer."""
    much, rows = len(asked), index.wordings
    begins = range(width * index.begins[n], width * index.begins[n + 1], width)
    best = max((_dot(asked, rows[at : at + much]) for at in begins), default=0)
    said = _dot(asked, index.answers[n * width : n * width + much])
    return (best + _ANSWER * said) / ((1 + _ANSWER) * _LENGTH**2)
