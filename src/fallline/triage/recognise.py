"""From words to specialists: which case a question is about, and how sure we are.

Each case brings phrases, error messages and code that point to it, and each specialist its words. A question is
compared with the phrases by the words and pieces of words they share (so typos cost little), rare ones counting more.
Error messages and code are matched as they are, and series of numbers (a loss that falls) count. The score is the chance, fitted on the development questions, that the
first route is right; a question with nothing of PyTorch training in it has no route.

`recognise` is all that the rest of triage knows of this: something better can take its place.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from typing import NamedTuple

from fallline.specialists import SPECIALISTS
from fallline.triage.kept import kept
from fallline.triage.numbers import trends
from fallline.triage.playbook import Case, cases_of, playbooks
from fallline.triage.post import Post
from fallline.triage.words import familiar, holds, other_framework, pointers, scope, spelled, tokens

__all__ = ["Match", "Question", "recognise"]

_LOOKING = 0.7  # what looking like a phrase weighs
_POINTING = 0.37  # what one sign of a specialist weighs
_IN_CODE = 0.3  # words in fenced code say less than words in prose: every loop has an optimizer
_ENOUGH = 4.0  # more signs than this say nothing more
_A_SIGN = 1.0  # the weight of one sign of a specialist
_SHOWN = 2.5  # what evidence weighs: more than any words
_MOVING = 0.3  # what a series of numbers weighs
_SLOPE, _MIDDLE = 6.0, 0.36
# whether it is ours at all: from the words of training in it, and from the share of its words that training has anything to do with
_ABOUT, _FAMILIAR, _STRANGE = 3.87, 8.97, -8.98
_MOST_ABOUT = 2.5
_IT, _SAID = frozenset({"it", "this", "run"}), 0.5
_WORD = re.compile(r"[a-z_][a-z0-9_.+-]*|\d+(?:\.\d+)?(?:e[+-]?\d+)?")
# a specialist called by its own name is an order, not a symptom: who should answer is not for the question to say. One name is also what people call what they do
_ORDINARY = frozenset({"fine-tuning"})
_ORDERED = re.compile("|".join(s.name for s in SPECIALISTS if s.name not in _ORDINARY), re.I)
_STOP = frozenset(
    "a an and are as at be been but by can could do does did for from get getting got had has have how i if in into is it "
    "its just me my not now of on or our please should so some still than that the their them then there these they this to "
    "too up very was we what when where which while who why will with would you your i'm it's don't doesn't am about after "
    "all also any because before being both each every few here more most other out over own same such only any anyone "
    "help need want add adding like using use used try tried trying know think see seems seem happen happens happening problem issue "
    "question way thing something anything best good right wrong make makes making work works working fix solve doesn don isn t s ve forgot forget usage".split()
)


@dataclass(frozen=True, slots=True)
class Question:
    """A question taken apart: what was said, in lower case for matching, and code (in fences, or pasted without)."""

    text: str
    prose: str
    code: str
    around: str = ""  # all but the code

    @classmethod
    def of(cls, text: str) -> Question:
        post = Post.of(text)
        return cls(
            _ORDERED.sub(" ", post.evidence),
            _ORDERED.sub(" ", post.prose).lower(),
            _ORDERED.sub(" ", post.code),
            post.only("prose", "log", "traceback", "config"),
        )


class Match(NamedTuple):
    """One case, and how much the question is about it (0 to 1)."""

    case: Case
    score: float
    like: float = 0.0  # what is the case's own in it, and not its specialist's
    named: bool = True  # whether words, a message or a finding name its specialist, or it only sounds like the case


def _pieces(text: str) -> Counter[str]:
    """Words, pairs of words, and the letters inside words, so that `gradeint` still looks like `gradient`."""
    words = [w.strip(".-+") for w in _WORD.findall(text)]
    kept = [w for w in words if w and w not in _STOP and not w[0].isdigit()]
    found: Counter[str] = Counter()
    for word in kept:
        found[word] += 1
        if len(word) > 4:
            padded = f"<{word}>"
            for i in range(len(padded) - 3):
                found["#" + padded[i : i + 4]] += 1
    for one, two in pairwise(kept):
        found[f"{one} {two}"] += 1
    return found


class _Index(NamedTuple):
    cases: tuple[Case, ...]
    weight: dict[str, float]
    phrases: tuple[tuple[int, dict[str, float], float], ...]  # case, vector, length
    vocabulary: frozenset[str]  # the words of the phrases
    prose: frozenset[str]  # and of all that the playbooks say


@cache
def _index() -> _Index:
    cases = tuple(case for book in playbooks() for case in book.cases)
    return _Index(cases, *kept("cases", lambda: _indexed(cases)))


def _indexed(
    cases: tuple[Case, ...],
) -> tuple[
    dict[str, float],
    tuple[tuple[int, dict[str, float], float], ...],
    frozenset[str],
    frozenset[str],
]:
    bags: list[tuple[int, Counter[str]]] = [
        (n, _pieces(phrase.lower()))
        for n, case in enumerate(cases)
        for phrase in (*case.says, case.title)
    ]
    spread: dict[str, set[int]] = {}
    for n, bag in bags:
        for piece in bag:
            spread.setdefault(piece, set()).add(n)
    total = len(cases) + 1
    weight = {
        piece: math.log(total / (len(where) + 0.5))
        * (0.35 if piece[0] == "#" else 1.4 if " " in piece else 1.0)
        for piece, where in spread.items()
    }
    phrases = []
    for n, bag in bags:
        vector = _vector(bag, weight)
        phrases.append((n, vector, _length(vector)))
    words = frozenset(p for p in spread if p[0] != "#" and " " not in p)
    prose = frozenset(token for case in cases for text in case.texts() for token in tokens(text))
    return weight, tuple(phrases), words, prose


def _vector(bag: Counter[str], weight: dict[str, float]) -> dict[str, float]:
    return {
        piece: (1 + math.log(count)) * weight[piece]
        for piece, count in bag.items()
        if weight.get(piece, 0) > 0
    }


def _length(vector: dict[str, float]) -> float:
    return math.sqrt(sum(v * v for v in vector.values())) or 1.0


def recognise(text: str, findings: Iterable[str] = ()) -> list[Match]:
    """The cases a question is about, best first. `findings` are rule codes that evidence has shown, worst first."""
    index = _index()
    question = Question.of(text)
    likeness = _likeness(question, index)
    pointing = pointers(question.prose)
    for who, weight in pointers(question.code).items():
        pointing[who] = pointing.get(who, 0.0) + _IN_CODE * weight
    moving = trends(question.around)
    shown = list(findings)
    sure = False
    scores = []
    named = {who for who, weight in pointing.items() if weight >= _A_SIGN}
    words = frozenset(tokens(question.text))
    for n, case in enumerate(index.cases):
        held = not case.needs or any(holds(words, need) for need in case.needs)
        score = likeness[n]
        if any(re.search(pattern, question.text, re.I) for pattern in case.errors):
            score, sure, held = score + 0.6, True, True
            named.add(case.specialist)
        if any(piece in question.code for piece in case.code):
            score += 0.08
        if moving.intersection(case.numbers):
            score += _MOVING
        if found := [n for n, code in enumerate(shown) if case.id in cases_of(code)]:
            score += _SHOWN if found[0] else _SHOWN + 1  # the worst finding leads
            held = True
            named.add(case.specialist)
        likeness[n] = score
        pointed = _POINTING * min(pointing.get(case.specialist, 0.0), _ENOUGH)
        scores.append(score + pointed if held else 0.0)
    if other_framework(question.text) and not shown:
        return []
    ours = 1.0 if shown else _ours(question, index, sure or bool(moving))
    order = sorted(range(len(scores)), key=lambda n: (-scores[n], index.cases[n].id))
    kept: list[Match] = []
    for n in (n for n in order if scores[n] > 0.08):
        case = index.cases[n]
        # a specialist with many cases must not crowd out the second one
        if sum(m.case.specialist == case.specialist for m in kept) < 2:
            score = round(_calibrated(scores[n]) * ours, 3)
            kept.append(Match(case, score, round(likeness[n], 3), case.specialist in named))
    return kept


def _likeness(question: Question, index: _Index) -> list[float]:
    """How much the prose looks like the phrases of each case."""
    likeness = [0.0] * len(index.cases)
    vector = _vector(_pieces(question.prose), index.weight)
    size = _length(vector)
    best: dict[int, list[float]] = {}
    for n, phrase, length in index.phrases:
        small, large = (phrase, vector) if len(phrase) < len(vector) else (vector, phrase)
        dot = sum(v * large[p] for p, v in small.items() if p in large)
        if dot:
            best.setdefault(n, []).append(dot / (length * size))
    known = 0.4 + 0.6 * _known_share(question.prose, index.vocabulary)
    # the nearest phrase says most; the next ones say that it was no accident
    for n, found in best.items():
        top = sorted(found, reverse=True)[:3]
        likeness[n] = _LOOKING * (top[0] + 0.25 * sum(top[1:]) / 2) * known
    return likeness


def _known_share(prose: str, vocabulary: frozenset[str]) -> float:
    words = [w for w in _WORD.findall(prose) if w not in _STOP and not w[0].isdigit()]
    if not words:
        return 0.0
    return sum(w in vocabulary for w in words) / len(words)


def _ours(question: Question, index: _Index, certain: bool) -> float:
    """The chance that a question is about training at all.

    Most words of training mean something else too (a loss, a batch, a checkpoint, a gradient): what is beside them tells. Of the words that people
    use of training nearly all are known here; of a border checkpoint's, few. A known message or a series of losses is `certain`.
    """
    words, known = _familiar(question.text, index.prose)
    about = min(scope(question.text), _MOST_ABOUT) + certain
    if about > 0 and known and all(known) and not _IT.isdisjoint(words):
        about += _SAID  # of nothing else can it be said here: why did it diverge?
    share = (sum(known) + 1) / (len(known) + 2)  # a few words are little proof either way
    return 1 / (1 + math.exp(-(_ABOUT * about + _FAMILIAR * share + _STRANGE)))


def _familiar(text: str, prose: frozenset[str]) -> tuple[set[str], list[bool]]:
    """The different words of a question, and of each that says anything whether it is ours."""
    words = set(spelled(tokens(text)))
    telling = [w for w in words if len(w) > 1 and w not in _STOP and not w[0].isdigit()]
    return words, [w in prose or ours for w in telling if (ours := familiar(w)) is not None]


def _calibrated(score: float) -> float:
    """A raw match as a probability. The slope and the middle are fitted on the development questions."""
    return 1 / (1 + math.exp(-_SLOPE * (score - _MIDDLE)))
