"""A post that asks several things gets several answers, each under its question."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

from fallline.triage.asked import questions_in
from fallline.triage.choose import Chosen, choose
from fallline.triage.filled import SENTENCE
from fallline.triage.frame import framed, speaks_of_all
from fallline.triage.words import spelled, tokens

__all__ = ["Part", "each_question", "headed"]

_SURE, _SPEAKS = 0.2, 0.35  # the least for a question that is read without the others
_ANSWERED = 2  # questions that are answered
_HEAD = 110  # characters of a question that stands above its answer
_BRIEF = 3  # sentences of each answer
_OPENING = re.compile(
    r"(?i)^(?:\W|(?:and|also|so|but|then|or|finally|secondly?|first(?:ly)?|furthermore)\b[, ]*)+"
)


class Part(NamedTuple):
    """A question of a post, in its own words, and the claim that answers it."""

    question: str
    chosen: Chosen


def each_question(best: list[Chosen], prose: str, specialists: Sequence[str]) -> list[Part]:
    """What answers a post that asks several questions: what was chosen for all of it, and what answers another of its questions, about a thing that the first answer does not speak of. Nothing where one answer is all."""
    if not best or best[0].told or best[0].claim.clarify:
        return []
    first = best[0]
    parts: list[Part] = []
    for question in questions_in(prose):
        low = question.lower()
        frame = framed(low)
        own = choose(low, low, spelled(tokens(low)), (), specialists, frame=frame).best[:1]
        known = {part.chosen.claim.id for part in parts}
        if not own or own[0].claim.id in known or own[0].claim.clarify:
            continue
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
    """The first of them, the one for the whole post among them, in the order in which they are asked."""
    others = [part for part in parts if part.chosen is not first][: _ANSWERED - 1]
    return [part for part in parts if part.chosen is first or part in others]


def headed(question: str, says: str) -> str:
    """A short answer below its question."""
    answer = " ".join(SENTENCE.split(says)[:_BRIEF])
    if not question:
        return answer
    asked = _OPENING.sub("", " ".join(question.split()))
    if len(asked) > _HEAD:
        asked = f"… {asked[-_HEAD:].partition(' ')[2]}"
    return f"“{asked[:1].upper()}{asked[1:]}” {answer}"
