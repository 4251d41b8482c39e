"""How much a question sounds like the wordings of each claim, and how much of it each claim speaks of: by words, rare ones counting more.

The tables are by word, and a question looks up its own words only.
"""

from __future__ import annotations

import math
from array import array
from collections import Counter
from collections.abc import Iterable
from functools import cache
from typing import NamedTuple

from fallline.triage.claim import claims
from fallline.triage.kept import kept
from fallline.triage.words import root, spelled, tokens, tokens_each

__all__ = ["Weighed", "likeness", "nearest_wording", "share", "weighed"]

_UNHEARD = 3.0  # the weight of a word that no claim uses: it may well be what the question is about
_FORM = frozenset(
    "a an the is are was were be been do does did i my me we our you your it its this that these those to of in on at for from and or but if so as by "
    "with have has had can could should would will may must not no how what why where when which who there here then than just please pls hi help "
    "need want get got am too very also any some all more most about into out up".split()
)


class _Index(NamedTuple):
    """The wordings of all claims, numbered one after the other."""

    weight: dict[str, float]  # of each word: the fewer claims use it, the more
    asks: dict[str, bytes]  # the wordings that hold it
    lengths: array[float]  # of each wording
    claim: array[int]  # and whose it is


def _bag(text: str) -> Counter[str]:
    return _counted(tokens(text))


def _counted(words: list[str]) -> Counter[str]:
    return Counter(root(word) for word in words if word not in _FORM)


@cache
def _index() -> _Index:
    weight, asks, lengths, claim = kept("asks", _indexed)
    return _Index(weight, asks, array("d", lengths), array("I", claim))


def _indexed() -> tuple[dict[str, float], dict[str, bytes], bytes, bytes]:
    claim = array("I", (n for n, c in enumerate(claims()) for _ in c.asks))
    bags = [_counted(words) for words in tokens_each(ask for c in claims() for ask in c.asks)]
    spread: dict[str, set[int]] = {}
    asks: dict[str, array[int]] = {}
    for wording, bag in enumerate(bags):
        for word in bag:
            spread.setdefault(word, set()).add(claim[wording])
            asks.setdefault(word, array("I")).append(wording)
    total = len(claims()) + 1
    weight = {word: math.log(total / len(where)) for word, where in spread.items()}
    lengths = array("d", (math.sqrt(sum(weight[word] ** 2 for word in bag)) or 1.0 for bag in bags))
    packed = {word: where.tobytes() for word, where in asks.items()}
    return weight, packed, lengths.tobytes(), claim.tobytes()


def likeness(prose: str) -> dict[int, float]:
    """How much a question sounds like the nearest wording of each claim, by its number."""
    index = _index()
    bag = _bag(prose)
    rare = max(index.weight.values(), default=1.0)
    # a word no claim knows makes a question less like all of them, but a long story is not held against it
    size = math.sqrt(sum(min(index.weight.get(word, rare), rare) ** 2 for word in bag)) or 1.0
    dots: dict[int, float] = {}
    for word in bag:
        if word in index.asks:
            squared = index.weight[word] * index.weight[word]
            for wording in array("I", index.asks[word]):
                dots[wording] = dots.get(wording, 0.0) + squared
    best: dict[int, float] = {}
    for wording, dot in dots.items():
        own, n = index.lengths[wording], index.claim[wording]
        best[n] = max(best.get(n, 0.0), dot / (own * math.sqrt(size * min(size, 2 * own))))
    return best


def nearest_wording(n: int, prose: str) -> str:
    """The wording of a claim that shares most with a question."""
    weight, said = _index().weight, _bag(prose)
    asks = claims()[n].asks
    shared = {a: sum(weight.get(w, 0.0) for w in _bag(a) if w in said) for a in asks}
    return max(shared, key=shared.__getitem__)


class _Vocabulary(NamedTuple):
    """The claims that use each word themselves, the beginnings that claims ask for, and how much each word tells."""

    users: dict[str, bytes]
    begin: dict[int, tuple[str, ...]]
    weight: dict[str, float]


@cache
def _vocabulary() -> _Vocabulary:
    return _Vocabulary(*kept("vocabulary", _used))


def _used() -> tuple[dict[str, bytes], dict[int, tuple[str, ...]], dict[str, float]]:
    users: dict[str, array[int]] = {}
    begin = {}
    texts = (" ".join([*c.asks, c.says, *(a.do for a in c.actions)]) for c in claims())
    for n, (claim, said) in enumerate(zip(claims(), tokens_each(texts), strict=True)):
        wanted = claim.when.words() if claim.when is not None else ()
        for word in {root(w) for w in said} | {root(w) for w in wanted if w[-1] != "*"}:
            users.setdefault(word, array("I")).append(n)
        if beginnings := tuple(w[:-1] for w in wanted if w[-1] == "*"):
            begin[n] = beginnings
    total = len(claims()) + 1
    weight = {word: math.log(total / (len(where) + 1)) for word, where in users.items()}
    return {word: where.tobytes() for word, where in users.items()}, begin, weight


class Weighed(NamedTuple):
    """The words of a text that say something: each with its weight and the claims that use it."""

    words: tuple[tuple[str, float, frozenset[int]], ...]
    total: float


def weighed(text: str) -> Weighed:
    table = _vocabulary()
    words = dict.fromkeys(w for w in spelled(tokens(text)) if w not in _FORM)
    rows = tuple(
        (
            word,
            table.weight.get(root(word), _UNHEARD),
            frozenset(array("I", table.users.get(root(word), b""))),
        )
        for word in words
    )
    return Weighed(rows, sum(weight for _, weight, _ in rows) or 1.0)


def share(n: int, of: Iterable[Weighed]) -> float:
    """How much of a text a claim speaks of, by weight: the most of several."""
    begin = _vocabulary().begin.get(n, ())
    return max(
        sum(v for word, v, users in one.words if n in users or word.startswith(begin)) / one.total
        for one in of
    )
