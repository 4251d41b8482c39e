"""Which claims answer a question: by a pasted message, by findings, by the words it holds, and by how much it sounds like what they answer."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from itertools import pairwise

from fallline.triage.claim import Claim, Condition, claims
from fallline.triage.messages import found, particular, readings
from fallline.triage.words import Said, root, spelled, tokens

__all__ = ["Chosen", "choose"]

_MESSAGE = 6.0  # a known message decides
_PARTICULAR = 40  # characters of a message that count as one
_FOUND = 3.0  # so does what was found in the code, unless a message says otherwise
_LEADS = 1.0  # and the worst finding first
_SEEN = 3.0  # or a shape of the pasted code
_GATE, _GROUP = 0.35, 0.12  # the words a claim asks for, and each further group of them
_LIKE = 2.2  # sounding like one of its questions
_ROUTED = 0.15  # being of the specialist that the whole question points to
_HEARD = 0.14  # a question that holds a claim's words must also sound a little like it
_ALONE = 0.42  # how much a question must sound like a claim without the words it asks for
_ALMOST = 0.5  # and without one group of them
_ENOUGH = 0.62  # the least that answers
_SECOND = 0.88  # a second claim is worth as much of the first's score
_FEW, _MOST = 3, 12  # sentences of a question that is taken as a whole, and that are looked at
_SENTENCE = re.compile(r"\n+|(?<=[.?!])\s+|(?<=[？。！])")
_FORM = frozenset(
    "a an the is are was were be been do does did i my me we our you your it its this that these those to of in on at for from and or but if so as by "
    "with have has had can could should would will may must not no how what why where when which who there here then than just please pls hi help "
    "need want get got am too very also any some all more most about into out up".split()
)


@dataclass(frozen=True, slots=True)
class Chosen:
    """A claim that answers, with what was read from the question for it."""

    claim: Claim
    score: float
    read: dict[str, str]
    told: bool = False  # by a pasted message
    seen: bool = False  # by a shape of the pasted code
    whole: bool = True  # it has all the words that the claim asks for, or sounds much like it


@dataclass(frozen=True, slots=True)
class _Index:
    weight: dict[str, float]
    asks: dict[str, list[tuple[int, int, float]]]  # word → claim, wording, weight in it
    lengths: dict[tuple[int, int], float]


def _bag(text: str) -> Counter[str]:
    return Counter(root(word) for word in tokens(text) if word not in _FORM)


@cache
def _index() -> _Index:
    bags = [(n, m, _bag(ask)) for n, c in enumerate(claims()) for m, ask in enumerate(c.asks)]
    spread: dict[str, set[int]] = {}
    for n, _, bag in bags:
        for word in bag:
            spread.setdefault(word, set()).add(n)
    total = len(claims()) + 1
    weight = {word: math.log(total / len(where)) for word, where in spread.items()}
    asks: dict[str, list[tuple[int, int, float]]] = {}
    lengths: dict[tuple[int, int], float] = {}
    for n, m, bag in bags:
        lengths[n, m] = math.sqrt(sum(weight[word] ** 2 for word in bag)) or 1.0
        for word in bag:
            asks.setdefault(word, []).append((n, m, weight[word]))
    return _Index(weight, asks, lengths)


def _likeness(prose: str) -> dict[int, float]:
    """How much a question sounds like the nearest wording of each claim."""
    index = _index()
    bag = _bag(prose)
    rare = max(index.weight.values(), default=1.0)
    # a word no claim knows makes a question less like all of them, but a long story is not held against it
    size = math.sqrt(sum(min(index.weight.get(word, rare), rare) ** 2 for word in bag)) or 1.0
    dots: dict[tuple[int, int], float] = {}
    for word in bag:
        for n, m, weight in index.asks.get(word, ()):
            dots[n, m] = dots.get((n, m), 0.0) + weight * weight
    best: dict[int, float] = {}
    for (n, m), dot in dots.items():
        own = index.lengths[n, m]
        best[n] = max(best.get(n, 0.0), dot / (own * math.sqrt(size * min(size, 2 * own))))
    return best


@dataclass(frozen=True, slots=True)
class _Part:
    """Some sentences of a question that belong together, as words and as they are written."""

    words: Said
    text: str


def _parts(text: str, prose: str, words: Said) -> list[_Part]:
    """The parts of a question in which a claim's words must meet: in a long one its title with two sentences that follow each other, else all of it.

    A story names many things; words from its ends that never meet are not about one.
    """
    whole = _Part(words, text)
    sentences = [s for s in _SENTENCE.split(prose.strip()) if s.strip()][:_MOST]
    if len(sentences) <= _FEW:
        return [whole]
    title, rest = sentences[0], sentences[1:]
    near = [f"{title}\n{one} {two}" for one, two in pairwise([*rest, ""])]
    return [_Part(spelled(tokens(part)), part) for part in near]


def choose(
    text: str,
    prose: str,
    words: Said,
    codes: Sequence[str],
    specialists: Sequence[str],
    shapes: frozenset[str] = frozenset(),
) -> list[Chosen]:
    """The claims that answer, best first: one, or two where the question is about both, then what shapes of the code add. `codes` are what evidence shows, worst first; `shapes` are those of the code."""
    shows, sizes = readings(text)
    low = text.lower()
    flat = " ".join(low.split())
    parts = _parts(low, prose, words)
    like = _likeness(prose)
    for part in parts if len(parts) > 1 else ():
        for n, much in _likeness(part.text).items():
            like[n] = max(like.get(n, 0.0), much)
    ranked: list[Chosen] = []
    for n, claim in enumerate(claims()):
        if claim.never is not None and all(claim.never.holds(p.words, p.text) for p in parts):
            continue
        scored = _scored(claim, like.get(n, 0.0), text, flat, parts, codes, shows, shapes)
        if scored is not None:
            score, read, told = scored
            score += _ROUTED if claim.specialist in specialists[:1] else 0.0
            seen = claim.code in shapes
            whole = claim.when is None or _gate(claim, parts)
            ranked.append(Chosen(claim, score, {**sizes, **read}, told, seen, whole))
    ranked.sort(key=lambda c: (-c.score, c.claim.id))
    best = [c for c in ranked if c.score >= _ENOUGH][:2]
    if len(best) == 2 and not _both(best[0], best[1]):
        best = best[:1]
    return best + [c for c in ranked if c.seen and c not in best]


def _scored(
    claim: Claim,
    like: float,
    text: str,
    flat: str,
    parts: list[_Part],
    codes: Sequence[str],
    shows: frozenset[str],
    shapes: frozenset[str],
) -> tuple[float, dict[str, str], bool] | None:
    # a longer message is a more particular one
    told = [
        (particular(m), read) for m in claim.messages if (read := found(m, text, flat)) is not None
    ]
    gate = _gate(claim, parts)
    score = _LIKE * like
    if gate:
        assert claim.when is not None
        score += _GATE + _GROUP * len(claim.when.groups)
    if told:
        if (claim.reads and claim.reads not in shows) or (claim.code and claim.code not in shapes):
            return None
        length, read = max(told, key=lambda row: row[0])
        shown = bool(claim.reads or claim.code)
        return _MESSAGE + shown + length / _PARTICULAR + score / 10, read, True
    if claim.reads:
        return None
    if claim.code in shapes:
        return score + _SEEN, {}, False
    if places := [n for n, code in enumerate(codes) if code in claim.rules]:
        return score + _FOUND + (_LEADS if places[0] == 0 else 0.0), {}, False
    if gate and like < _HEARD:
        return None  # its words are there by accident: the question is about something else
    if not gate and like < 1.5 * _ALONE:
        enough = _ALONE if claim.when is None else _ALMOST
        if like < enough or (claim.when is not None and not _almost(claim.when, parts)):
            return None
    return score, {}, False


def _gate(claim: Claim, parts: list[_Part]) -> bool:
    """Whether the words that a claim asks for meet in a part of the question, and none there rules it out."""
    return claim.when is not None and any(
        claim.when.holds(p.words, p.text)
        and not (claim.never is not None and claim.never.holds(p.words, p.text))
        for p in parts
    )


def _almost(when: Condition, parts: list[_Part]) -> bool:
    """Whether all groups of a claim's words but one are there: few words name a thing, and leave out what is asked of it."""
    groups = [Condition((group,)) for group in when.groups]
    if len(groups) < 2:
        return False
    return any(_but_one([g.holds(p.words, p.text) for g in groups]) for p in parts)


def _but_one(held: list[bool]) -> bool:
    return held[0] and held.count(False) == 1


def _both(one: Chosen, two: Chosen) -> bool:
    """Whether a second claim belongs in the answer: of another specialist, nearly as good, and not told by a message alone."""
    return (
        not one.told
        and two.whole
        and two.claim.specialist != one.claim.specialist
        and two.score >= _SECOND * one.score
        and not two.claim.clarify
        and not one.claim.clarify
    )
