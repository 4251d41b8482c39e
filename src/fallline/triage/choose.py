"""Which claims answer a question: by a pasted message, by findings, by the words it holds, and by how much it sounds like what they answer."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Sequence
from itertools import pairwise
from typing import NamedTuple

from fallline.triage.asked import Asked, sentences_of
from fallline.triage.claim import Claim, claims
from fallline.triage.frame import Agreement, Frame, agreement, related
from fallline.triage.leads import led_to
from fallline.triage.likeness import likeness, nearest_wording, share, weighed
from fallline.triage.meaning import nearness
from fallline.triage.messages import error_at, found, readings
from fallline.triage.mirror import agreed
from fallline.triage.mirror import told as told_of
from fallline.triage.plain import plain_complaint
from fallline.triage.trace import read_from
from fallline.triage.words import Said, spelled, tokens

__all__ = ["Choice", "Chosen", "Nearest", "choose"]

_MESSAGE = 6.0  # a known message decides
_PARTICULAR = 40  # characters of a message that count as one
_RULED_OUT = 0.5  # off a message's claim whose words of exclusion are anywhere in the question: another one may share the message
_TIED = 0.01  # how a question sounds only decides between claims that share a message
_WRAPPED = 2.0  # what only reports another failure yields to that one's message
_FOUND = 3.0  # so does what was found in the code, unless a message says otherwise
_LEADS = 1.0  # and the worst finding first
_SEEN = 3.0  # or a shape of the pasted code
_RAN = 0.5  # what the frames of a traceback show, beside the message
_PLAIN = "plain"
_GENERAL = 2.0  # the general answer to a complaint in everyday words
_LOGGED, _FURTHER = (
    2.0,
    0.5,
)  # what the numbers of a log show, and each further fact: less, since a log shows much that was not asked about
_TRIED = 1.2  # what was tried and did not help
_GATE = 0.35  # the words a claim asks for
_LIKE = 2.2  # sounding like one of its questions
_MEANT = 0.64  # the share of meaning in that, beside the words themselves
_STRETCH = 1.2  # texts that have nothing to do with each other are a little near, too
_ROUTED = 0.2  # being of the specialist that the whole question points to
_SPEAKS, _ABOUT, _UNEXPLAINED = (
    0.4,
    0.25,
    0.17,
)  # the share of the question's words that the claim uses itself, in its wordings and in its answer; the share of the claim's subject that the question names; and each sign of the question that the claim never speaks of
_COURSE = 0.6  # and each thing that both say of the curves of training and of held-out data
_TOLD = 0.4  # how much of what it is said to do the wordings name
_SILENT = 0.26  # a claim that speaks of less than this, neither in the title nor in all of it, answers something else; of a long story less is enough, the more it sounds like it
_HEARD = 0.19  # a question must be a little like a claim: with less, nothing makes it sure enough
_ALONE = 0.42  # what sounds this much like a question may use other words
_ENOUGH = 0.62  # the least that answers
_SECOND = 0.9  # a second claim is worth as much of the first's score
# how sure it is that a claim which only words lead to answers the question: fitted on judged answers to 134 questions of strangers (benchmarks/RESULTS.md)
_SURE = {"score": 2.8, "speaks": 0.45, "answer": 1.2, "unexplained": -0.7, "base": -4.55}
_LINE = -0.2  # with less it is not given
_FAR = -1.2  # and with less it is not even named as the nearest
_SAME = 0.7  # a question that sounds this much like a wording is that question
_FEW, _MOST = 3, 12  # sentences of a question that is taken as a whole, and that are looked at


class Chosen(NamedTuple):
    """A claim that answers, with what was read from the question for it."""

    claim: Claim
    score: float  # how certain it is that this is asked
    rank: float  # and how well it answers beside others: with the share of the question that it speaks of
    read: dict[str, str]
    told: bool = False  # by a pasted message
    seen: bool = False  # by a shape of the pasted code
    speaks: float = 0.0  # the share of the question that it speaks of
    whole: bool = True  # it has all the words that the claim asks for, or sounds much like it
    logged: str | None = None  # the fact of a pasted log that leads here
    at: int | None = None  # where the error that told it was raised in the text
    sure: float = (
        math.inf
    )  # how sure it is that it answers, as the logarithm of odds; where evidence leads to it, quite


class Nearest(NamedTuple):
    """A claim that may be what was meant, by the wording that is nearest to the question."""

    claim: Claim
    wording: str


class Choice(NamedTuple):
    """The claims that answer, best first, and where none does the one that is nearest."""

    best: list[Chosen]
    nearest: Nearest | None = None


def _alike(prose: str, parts: list[_Part]) -> dict[int, float]:
    """How much a question, or the nearest of its parts, is like each claim: by the words they share, and by what they mean."""
    asked = Asked.of(prose).text
    several = [part.text for part in parts] if len(parts) > 1 else []
    like = likeness(prose)
    for text in (*several, asked):
        for n, much in likeness(text).items():
            like[n] = max(like.get(n, 0.0), much)
    near = nearness(prose, asked)
    return {
        n: (1 - _MEANT) * like.get(n, 0.0)
        + _MEANT * max(0.0, 1 - _STRETCH * (1 - near.get(n, 0.0)))
        for n in like.keys() | near.keys()
    }


class _Part(NamedTuple):
    """Some sentences of a question that belong together, as words and as they are written."""

    words: Said
    text: str


def _parts(text: str, prose: str, words: Said) -> list[_Part]:
    """The parts of a question in which a claim's words must meet: in a long one its title with two sentences that follow each other, else all of it.

    A story names many things; words from its ends that never meet are not about one.
    """
    whole = _Part(words, text)
    sentences = sentences_of(prose)[:_MOST]
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
    facts: Collection[str] = (),
    spent: Callable[[Claim], bool] = lambda claim: False,
    looked: bool = False,
    frame: Frame | None = None,
    since: int = 0,
) -> Choice:
    """The claims that answer, best first: one, or two where the question is about both, then what shapes of the code add. `codes` are what evidence shows, worst first; `shapes` are those of the code, `facts` those of a pasted log; a claim is `spent` if all it recommends was done. Where a whole file or a run was `looked` at, a claim must be shown by it or have all its words in the question: that it sounds like it does not make it true of that program. Nor is a question sent away because it sounds like another field. `since` is where the last of several tracebacks begins."""
    shows, sizes = readings(text)
    sizes |= read_from(text)
    low = text.lower()
    flat = " ".join(low.split())
    whole = _Part(words, low)
    parts = _parts(low, prose, words)
    like = _alike(prose, parts)
    asked = [weighed(one) for one in (Asked.of(prose).title, Asked.of(prose).text, prose)]
    said = spelled(tokens(prose))
    course = told_of(prose)
    plain = plain_complaint(prose) or plain_complaint(prose.strip().partition("\n")[0])
    ranked: dict[int, Chosen] = {}
    # all others have nothing in the question that speaks for them
    for n in led_to(flat, codes, shapes, facts, plain).union(
        n for n, much in like.items() if much >= _HEARD
    ):
        claim = claims()[n]
        logged = _shown(claim, facts, said) or _generally(claim, plain)
        scored = _scored(
            claim,
            like.get(n, 0.0),
            text,
            flat,
            whole,
            parts,
            codes,
            shows,
            shapes,
            logged,
            sizes.get("ran", ""),
        )
        # a message rules its claim in: words of exclusion only rank it behind another one that has the message
        if scored is not None and (scored[2] or not _ruled_out(claim, parts)):
            score, read, told, at = scored
            speaks = share(n, asked)
            shown = bool(
                told or logged or claim.code in shapes or any(c in claim.rules for c in codes)
            )
            heard = like.get(n, 0.0)
            if speaks < _SILENT * (1 - heard / 3) and heard < _ALONE and not shown:
                continue
            same = agreed(n, course)
            if same is None and not shown:
                continue  # a mirror image of what was asked
            if spent(claim) and not told and claim.code not in shapes:
                continue
            named = _gate(claim, parts)
            if not (shown or named) and (looked or claim.border):
                continue
            if looked and claim.code and not shown:
                continue
            score += _ROUTED if claim.specialist in specialists[:1] else 0.0
            score += 0.0 if told else _COURSE * (same or 0)
            seen = claim.code in shapes
            gated = claim.when is None or named
            rank = score if told else score + _SPEAKS * speaks  # a message decides by itself
            sure = math.inf
            if frame is not None and not shown:
                fits = agreement(n, frame)
                rank += _ABOUT * fits.own - _UNEXPLAINED * fits.unexplained + _TOLD * fits.told
                if not claim.border and heard < _SAME:
                    sure = _sure(score, speaks, fits)
            ranked[n] = Chosen(claim, score, rank, {**sizes, **read}, told, seen, speaks, gated, logged, at, sure)  # fmt: skip
    ranked = _first_error(ranked, since)
    order = sorted(ranked.values(), key=lambda c: (-c.rank, c.claim.id))
    best = [c for c in order if c.score >= _ENOUGH and c.sure >= _LINE][:2]
    if len(best) == 2 and not _both(best[0], best[1]):
        best = best[:1]
    best += [c for c in order if c.seen and c not in best]
    return Choice(best, None if best else _nearest(ranked, like, prose, frame))


def _nearest(
    ranked: dict[int, Chosen], like: dict[int, float], prose: str, frame: Frame | None
) -> Nearest | None:
    """The claim to name where none is sure enough to be given: the surest of those that might answer. It must be about a thing that the question names; one that asks back or points elsewhere is not an answer to offer, and one that only sounds like the question costs more trust than none."""
    if frame is None:
        return None
    near = [
        (chosen.sure, like[n], n)
        for n, chosen in ranked.items()
        if _FAR <= chosen.sure < math.inf and _offered(chosen.claim, n, frame)
    ]
    if not near:
        return None
    n = max(near)[2]
    return Nearest(claims()[n], nearest_wording(n, prose))


def _offered(claim: Claim, n: int, frame: Frame) -> bool:
    return not (claim.clarify or claim.border) and bool(claim.asks) and related(n, frame)


def _sure(score: float, speaks: float, fits: Agreement) -> float:
    if fits.lacks:
        return -math.inf  # it is about something that was not asked about
    return (
        _SURE["score"] * score
        + _SURE["speaks"] * speaks
        + _SURE["answer"] * fits.answer
        + _SURE["unexplained"] * fits.unexplained
        + _SURE["base"]
    )


def _first_error(ranked: dict[int, Chosen], since: int) -> dict[int, Chosen]:
    """Without the claims that are told by another error than the first one that is known of the last traceback (`since`: where it begins)."""
    every = [c.at for c in ranked.values() if c.at is not None]
    raised = [at for at in every if at >= since] or every
    return {n: c for n, c in ranked.items() if c.at is None or c.at == min(raised)}


def _scored(
    claim: Claim,
    like: float,
    text: str,
    flat: str,
    whole: _Part,
    parts: list[_Part],
    codes: Sequence[str],
    shows: frozenset[str],
    shapes: frozenset[str],
    logged: str | None,
    ran: str,
) -> tuple[float, dict[str, str], bool, int | None] | None:
    # a longer message is a more particular one
    told = [held for m in claim.messages if (held := found(m, text, flat)) is not None]
    led = logged is not None or claim.code in shapes or any(code in claim.rules for code in codes)
    if not told and not led and like < _HEARD:
        return None  # nearly all of them: their words need not be looked for
    gate = _gate(claim, parts)
    score = _LIKE * like
    if logged is not None:
        score += (
            _GENERAL
            if logged == _PLAIN
            else (
                _TRIED
                if logged.startswith("tried ")
                else _LOGGED + _FURTHER * (len(claim.shows) - 1)
            )
        )
    if gate:
        score += _GATE
    if told:
        if (claim.reads and claim.reads not in shows) or (claim.code and claim.code not in shapes):
            return None
        if claim.ran and not any(one in ran for one in claim.ran):
            return None
        length, place, read = max(told, key=lambda row: row[0])
        shown = bool(claim.reads or claim.code) + _RAN * bool(claim.ran)
        told_by = _WRAPPED if claim.wraps else _MESSAGE + length / _PARTICULAR
        if claim.never is not None and claim.never.holds(whole.words, whole.text):
            told_by -= _RULED_OUT
        at = None if claim.wraps else error_at(text, place)
        return told_by + shown + _TIED * score, read, True, at
    if claim.reads:
        return None
    if claim.code in shapes:
        return score + _SEEN, {}, False, None
    if places := [n for n, code in enumerate(codes) if code in claim.rules]:
        return score + _FOUND + (_LEADS if places[0] == 0 else 0.0), {}, False, None
    return score, {}, False, None


def _shown(claim: Claim, facts: Collection[str], said: Said) -> str | None:
    """The fact that leads to a claim. What was tried leads only to one whose subject the question names: a script does much that is not asked about."""
    fact = claim.shown_by(facts)
    if fact is None or not fact.startswith("tried "):
        return fact
    return fact if _named(claim, _Part(said, "")) else None


def _generally(claim: Claim, plain: Collection[str]) -> str | None:
    """That a claim is the general answer to a complaint that names nothing else."""
    return _PLAIN if claim.plain and claim.plain in plain else None


def _named(claim: Claim, part: _Part) -> bool:
    """Whether a text holds a word of the first group that a claim asks for: its subject."""
    return claim.when is not None and claim.when.each[0].holds(part.words, part.text)


def _ruled_out(claim: Claim, parts: list[_Part]) -> bool:
    """Whether every part of the question holds words that the claim excludes."""
    return claim.never is not None and all(claim.never.holds(p.words, p.text) for p in parts)


def _gate(claim: Claim, parts: list[_Part]) -> bool:
    """Whether the words that a claim asks for meet in a part of the question, and none there rules it out."""
    return claim.when is not None and any(
        claim.when.holds(p.words, p.text)
        and not (claim.never is not None and claim.never.holds(p.words, p.text))
        for p in parts
    )


def _both(one: Chosen, two: Chosen) -> bool:
    """Whether a second claim belongs in the answer: of another specialist, nearly as good, and not told by a message alone."""
    return (
        not one.told
        and two.whole
        and two.claim.specialist != one.claim.specialist
        and two.rank >= _SECOND * one.rank
        and two.speaks >= _SILENT
        and not two.claim.clarify
        and not one.claim.clarify
    )
