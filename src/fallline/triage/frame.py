"""What a question is about: the things it names and what they do (frames.toml), and how far a claim is about the same.

Words shared by accident make an answer fluent and wrong: "per-sample gradients with vmap" is asked of BatchNorm in our wordings, and of indexing in the question.
A claim's own subject is what its wordings name; a question that does not name it asks something else, and so does one whose subject the claim never speaks of.
"""

from __future__ import annotations

import marshal
import math
import re
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from fallline.triage.claim import Claim, claims
from fallline.triage.kept import kept, tables
from fallline.triage.words import root, tokens, tokens_each

__all__ = [
    "Agreement",
    "Frame",
    "agreement",
    "at_home",
    "framed",
    "related",
    "speaks_of_all",
    "speaks_of_things",
    "topics",
    "uncommon",
]

_HOME = Path(__file__).parent / "frames.toml"
_HOME_THINGS = 2
_FIRST = re.compile(r"(?<=[.:;])\s")
_EVERYWHERE = frozenset({"loss", "gradients", "device", "accuracy", "batch_size", "images"})
_BEGINNING = 3  # letters by which a word that ends in `*` is found


class Frame(NamedTuple):
    """The things that a question names, and the signs: what it says that they do."""

    things: frozenset[str]
    signs: frozenset[str]


class Agreement(NamedTuple):
    """How far a claim is about what a question is about."""

    own: float  # how much of the claim's own subject the question names, by weight (0 to 1)
    answer: float  # and of that part of it which the first sentence of its answer is about
    unexplained: int  # the signs of the question that it never speaks of
    told: float  # how much of those signs its wordings name, rare ones counting more (0 to 1)
    lacks: bool  # the question does not name a thing that all wordings of the claim name


class _Lexicon(NamedTuple):
    exact: dict[str, list[tuple[str, tuple[str, ...]]]]  # by the root of the first word
    begun: dict[str, list[tuple[str, tuple[str, ...]]]]  # by its first letters
    signs: frozenset[str]
    everyday: frozenset[str]
    common: frozenset[str]


@cache
def _lexicon() -> _Lexicon:
    return _Lexicon(*kept("frames", _read))


def _read() -> tuple[Any, ...]:
    """The lexicon as plain data."""
    raw: dict[str, dict[str, str]] = tables([_HOME])[0]
    exact: dict[str, list[tuple[str, tuple[str, ...]]]] = {}
    begun: dict[str, list[tuple[str, tuple[str, ...]]]] = {}
    for group in ("things", "signs"):
        for name, written in raw[group].items():
            for phrase in written.split("|"):
                parts = tuple(p if p[-1] == "*" else root(p) for p in phrase.split())
                first = parts[0]
                if first[-1] == "*":
                    begun.setdefault(first[:_BEGINNING].rstrip("*"), []).append((name, parts))
                else:
                    exact.setdefault(first, []).append((name, parts))
    return (
        exact,
        begun,
        frozenset(raw["signs"]),
        *(frozenset(raw["scope"][name].split()) for name in ("everyday", "common")),
    )


def _named(words: list[str]) -> set[str]:
    """The things and signs that words name."""
    lexicon = _lexicon()
    roots = [root(w) for w in words]
    found: set[str] = set()
    for at, word in enumerate(words):
        near = lexicon.exact.get(roots[at], ())
        for length in range(2, _BEGINNING + 1):
            near = (*near, *lexicon.begun.get(word[:length], ()))
        for name, parts in near:
            if name not in found and _stands(parts, words, roots, at):
                found.add(name)
    return found


def _stands(parts: tuple[str, ...], words: list[str], roots: list[str], at: int) -> bool:
    if at + len(parts) > len(words):
        return False
    return all(
        words[at + n].startswith(p[:-1]) if p[-1] == "*" else roots[at + n] == p
        for n, p in enumerate(parts)
    )


def framed(prose: str, code: str = "") -> Frame:
    """The frame of a question: what its prose names, and the things of its code."""
    signs = _lexicon().signs
    said = _named(tokens(prose))
    return Frame(frozenset(said | _named(tokens(code))) - signs, frozenset(said & signs))


def at_home(frame: Frame) -> bool:
    """Whether a question names things that only training has: two of them are not an accident."""
    return len(uncommon(frame)) >= _HOME_THINGS


def uncommon(frame: Frame) -> frozenset[str]:
    """The things that a question names, without the everyday ones."""
    return frame.things - _lexicon().everyday


class _Subject(NamedTuple):
    """What a claim is about: each thing with the share of its wordings that name it, those that its answer begins with, and all things and signs that it speaks of."""

    own: dict[str, float]
    answer: frozenset[str]
    speaks: frozenset[str]
    signs: dict[str, float]  # and the signs, each with the share of its wordings that name it


class _Index(NamedTuple):
    subjects: list[bytes]
    weight: dict[str, float]


@cache
def _index() -> _Index:
    return _Index(*kept("subjects", _indexed))


@cache
def _subject(n: int) -> _Subject:
    return _Subject(*marshal.loads(_index().subjects[n]))


def _indexed() -> tuple[list[bytes], dict[str, float]]:
    signs = _lexicon().signs
    subjects = []
    spread: dict[str, int] = {}
    wordings = iter(tokens_each(ask for c in claims() for ask in c.asks))
    texts = tokens_each(" ".join(_spoken(c)) for c in claims())
    firsts = tokens_each(_FIRST.split(c.says)[0] for c in claims())
    for claim, said, first in zip(claims(), texts, firsts, strict=True):
        asked = [_named(next(wordings)) for _ in claim.asks]
        counts = {t: sum(t in one for one in asked) / len(asked) for t in set().union(*asked)}
        own = {t: share for t, share in counts.items() if t not in signs}
        for name in counts:
            spread[name] = spread.get(name, 0) + 1
        speaks = frozenset(_named(said)) | frozenset(counts)
        told = {t: share for t, share in counts.items() if t in signs}
        subjects.append(marshal.dumps((own, frozenset(_named(first)) & own.keys(), speaks, told)))
    weight = {t: math.log((len(subjects) + 1) / n) for t, n in spread.items()}
    return subjects, weight


def _spoken(claim: Claim) -> Iterable[str]:
    yield claim.says
    yield from (a.do for a in claim.actions)
    yield from claim.messages
    if claim.when is not None:
        yield " ".join(w.rstrip("*") for w in claim.when.words())


def agreement(number: int, frame: Frame) -> Agreement:
    """How far a claim (by its number) and a question are about the same."""
    index = _index()
    subject = _subject(number)
    # a thing that all wordings name is the subject; one that a single wording names is an example
    own = {t: share**2 * index.weight[t] for t, share in subject.own.items()}
    return Agreement(
        _named_share(own, frame),
        _named_share({t: index.weight[t] for t in subject.answer}, frame),
        len(frame.signs - subject.speaks),
        _told(subject, frame),
        any(
            share == 1 and thing not in frame.things and thing not in _lexicon().common
            for thing, share in subject.own.items()
        ),
    )


def _told(subject: _Subject, frame: Frame) -> float:
    """Of a claim that is not about the things of a question, its signs tell nothing: NaN is reported of anything."""
    weight = _index().weight
    rarest = max((weight.get(sign, 0.0) for sign in _lexicon().signs), default=1.0)
    told = sum(share * weight[sign] for sign, share in subject.signs.items() if sign in frame.signs)
    things = topics(frame)
    about = len(things & subject.own.keys()) / len(things) if things else 1.0
    about *= _named_share({t: share**2 * weight[t] for t, share in subject.own.items()}, frame)
    return about * told / (rarest * (len(frame.signs) or 1))


def _named_share(things: dict[str, float], frame: Frame) -> float:
    """How much of these things, by weight, a question names; of none, all."""
    named = sum(weight for thing, weight in things.items() if thing in frame.things)
    return named / sum(things.values()) if things else 1.0


def related(number: int, frame: Frame) -> bool:
    """Whether a claim is about one of the things that a question names, and not only about something everyday."""
    own = frozenset(_subject(number).own)
    return bool(own & frame.things - _lexicon().everyday)


def topics(frame: Frame) -> frozenset[str]:
    """What a question can be about: the things it names, without those that are in nearly every question."""
    return frame.things - _EVERYWHERE


def speaks_of_all(claim: Claim, frame: Frame) -> bool:
    """Whether a claim is asked or answers about all topics of a question."""
    return topics(frame) <= _named(tokens(" ".join([*claim.asks, claim.says])))


def speaks_of_things(frame: Frame, text: str) -> bool:
    """Whether a text speaks of at least half of the things that a question names, everyday ones aside."""
    asked = frame.things - _lexicon().everyday
    return 2 * len(asked & _named(tokens(text))) >= len(asked)
