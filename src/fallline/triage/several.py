"""A post that asks several things gets several answers, each under its question."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

from fallline.triage.asked import Asked, questions_in
from fallline.triage.choose import Chosen, choose
from fallline.triage.filled import SENTENCE
from fallline.triage.frame import framed, speaks_of_all, topics
from fallline.triage.post import Post
from fallline.triage.words import spelled, tokens

__all__ = ["Part", "each_question", "headed", "hidden"]

_SURE, _SPEAKS = 0.2, 0.35  # the least for a question that is read without the others
# and for one sentence of a post that leads nowhere as a whole
_HIDDEN_SURE, _HIDDEN_SPEAKS = 1.5, 0.6
_ANSWERED = 2  # questions that are answered
_HEAD = 110  # characters of a question that stands above its answer
_BRIEF = 3  # sentences of each answer
_OPENING = re.compile(
    r"(?i)^(?:\W|(?:and|also|so|but|then|or|finally|secondly?|first(?:ly)?|furthermore|besides|additionally|moreover|in addition|therefore|hence)\b[, ]*)+"
)


class Part(NamedTuple):
    """A question of a post, in its own words, and the claim that answers it."""

    question: str
    chosen: Chosen


def hidden(post: Post, specialists: Sequence[str]) -> list[Chosen]:
    """The claim for what a long post asks in one of its sentences, where all of it together leads to none."""
    asked = Asked.of(post.prose)
    if not (asked.questions or asked.complaints or asked.case):
        return []
    texts = (asked.title, *asked.questions, *asked.complaints, *questions_in(post.prose))
    found = [
        chosen
        for text in dict.fromkeys(texts)
        for chosen in _alone(text, post, specialists)
        if chosen.sure >= _HIDDEN_SURE
        and chosen.speaks >= _HIDDEN_SPEAKS
        and not chosen.claim.border
    ]
    return sorted(found, key=lambda c: -c.sure)[:1]


def _alone(text: str, post: Post, specialists: Sequence[str]) -> list[Chosen]:
    """The claim that a sentence leads to by itself, of those that do not ask back."""
    low = text.lower()
    frame = framed(low, post.repositories)
    best = choose(low, low, spelled(tokens(low)), (), specialists, frame=frame).best[:1]
    return [c for c in best if not c.claim.clarify]


def each_question(best: list[Chosen], post: Post, specialists: Sequence[str]) -> list[Part]:
    """What answers a post that asks several questions: what was chosen for all of it, and what answers another of its questions, about a thing that the first answer does not speak of. Nothing where one answer is all."""
    if not best or best[0].told or best[0].claim.clarify:
        return []
    first = best[0]
    parts: list[Part] = []
    for question in questions_in(post.prose):
        own = _alone(question, post, specialists)
        known = {part.chosen.claim.id for part in parts}
        if not own or own[0].claim.id in known:
            continue
        frame = framed(question, post.repositories)
        if own[0].claim.id == first.claim.id:
            parts.append(Part(question, first))
        elif (
            own[0].sure >= _SURE
            and own[0].speaks >= _SPEAKS
            and not speaks_of_all(first.claim, frame)
        ):
            parts.append(Part(question, own[0]))
    if all(part.chosen is not first for part in parts):
        parts = [Part("", first), *parts]
    return _with(first, parts) if len(parts) > 1 else []


def _with(first: Chosen, parts: list[Part]) -> list[Part]:
    """The one for the whole post and one more, in the order in which they are asked; nothing where the other question names no thing but those of the first."""
    asked = next(part.question for part in parts if part.chosen is first)
    others = [
        p
        for p in parts
        if p.chosen is not first and topics(framed(p.question)) - topics(framed(asked))
    ]
    found = [part for part in parts if part.chosen is first or part in others[: _ANSWERED - 1]]
    return found if len(found) > 1 else []


def headed(question: str, says: str) -> str:
    """A short answer below its question."""
    answer = " ".join(SENTENCE.split(says)[:_BRIEF])
    if not question:
        return answer
    asked = _OPENING.sub("", " ".join(question.split()))
    if len(asked) > _HEAD:
        asked = f"… {asked[-_HEAD:].partition(' ')[2]}"
    return f"“{asked[:1].upper()}{asked[1:]}” {answer}"
