"""The shape of a question: does it want a yes or a no, which way round is it asked, and is it about the asker's own code?

A yes or a no is only said where it is certain to what. A claim has a verdict for its own wordings (`ask:`), and a question gets it only if it
asks the same: for a permission or for a duty, about one of two ways or about one, in the same order, with as many negations, of the same type.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache

from fallline.triage.words import root, tokens

__all__ = ["Shape"]

_VERBS = "is|are|isn't|aren't|am|was|does|do|don't|doesn't|did|should|shouldn't|can|can't|could|will|won't|would|must|may|has|have|need"
_REST = r"(?:[^.?!\n]|[.](?=\S)){0,200}[?]"  # to the end of the sentence; a dot inside a name does not end it
_ASKED = re.compile(
    rf"(?i)(?:^|[.!?:;,\n]\s*|\b(?:so|and|but|then|or|hi|hey|hello|also)[, ]+)(?:{_VERBS})\b{_REST}"
)
_INSIDE = re.compile(
    rf"(?i)(?<!what )(?<!how )(?<!why )(?<!where )(?<!when )(?<!which )\b(?:{_VERBS})\s+(?:i|we|you|it|this|that|the|there|my|they)\b{_REST}"
)
_BARE = re.compile(rf"(?i)^\W*(?:{_VERBS})\s+\w[^.?!\n]{{0,200}}")
# who says it with confidence wants it confirmed
_CONFIRM = re.compile(
    r"(?i)\b(?:right|ok|okay|correct|agreed?|good|fine|true|yes|normal|safe)\s*\?|\b(?:just |please )?confirm\b|\btell (?:him|her|them|me) (?:he|she|they|i)(?:'s|'re|'m| is| are| am) right\b|"
    r"\bjust tell me to\b|\b(?:please )?say (?:yes|that)\b|\bagree\b|\b(?:quick|final answer|answer) yes\b|\bi know it\b|\bsurely\b|\bapprove (?:my|the)\b|\beverybody knows\b|\bobviously\b|\bi(?:'m| am) sure\b|\bperiod\b|\bno need to\b|\bso (?:skip|leave|ignore) it\b|\bskip the rest\b|"
    r"\bmust be (?:a|my|the)\b|\bi(?:'ll| will) (?:just )?(?:leave|skip|ignore|clamp|keep|stay)\b|\bi just\b"
)
_OPEN = re.compile(
    r"(?i)\b(?:how|where|what|which|why|when|who)\b[^.?!\n]{0,200}\?|^\W*(?:how|where|what|which|why|when|who)\b"
)
# one of two: no yes or no answers it
_EITHER = re.compile(
    r"(?i)\b(?:before|inside|above|first|earlier) or (?:after|outside|below|last|later)\b|\bafter or before\b|\b[\w.()]+ or (?!not\b|so\b|is\b|are\b|do\b|does\b|am\b|should\b|can\b|will\b|more\b|less\b|only\b)[\w.()]+"
)
# asked whether it is a mistake, the answer to "is it right?" changes sides
_TURNED = re.compile(
    r"(?i)\b(?:problem|wrong|wrongly|bad|badly|harmful|bug|buggy|mistakes?|worr\w+|hurt\w*|dangerous|broken|break|incorrect\w*|errors?)\b"
)
_JUDGED = r"(?:right|correct\w*|ok|okay|fine|good|proper\w*|wrong\w*|broken|buggy|incorrect\w*|mistakes?|bugs?|problems?|errors?|in order)"
# about the asker's own code: only the code can answer it
_MINE = re.compile(
    rf"(?i)\b(?:is|are|does|do|did|has|have|isn't|aren't)\b[^.?!\n]{{0,20}}\b(?:my|our|this)\b(?! (?:normal|necessary|needed))[^.?!\n]{{0,60}}\b{_JUDGED}(?=\W|$)|"
    rf"\b(?:am|are|did|do) (?:i|we)\b[^.?!\n]{{0,60}}\b(?:right|correctly|properly|wrong|wrongly|incorrectly|badly)\b|"
    rf"\b(?:in|at) the (?:right|correct|wrong) (?:place|position|order|spot)\b|\bplaced (?:right|correctly|wrongly)\b|"
    rf"\b(?:some|any)thing (?:wrong|broken|incorrect)\b|\b(?:is|are) there (?:a|an|any|some) (?:bugs?|mistakes?|errors?|problems?)\b|"
    rf"\bis (?:the|my) (?:code|loop|script|training loop)\b[^.?!\n]{{0,30}}\b{_JUDGED}(?=\W|$)"
)
# asking whether somebody else's code is to blame is not about the asker's own
_THEIRS = re.compile(
    r"(?i)\b(?:bug|problem|issue|error|mistake)s? (?:with|in|of|from) (?!my\b|our\b|this\b|the (?:code|loop|script|training)\b)"
)
_NEED = re.compile(
    r"(?i)\b(?:need(?:s|ed)?|have to|has to|must|required?|necessary|mandatory|optional|redundant|unnecessary)\b"
)
_SHOULD = re.compile(r"(?i)\b(?:should|shall|better to|worth)\b")
_MAY = re.compile(
    r"(?i)\b(?:ok|okay|safe|fine|allowed|possible|right|correct|normal|good|can (?:i|we|you|one)|may (?:i|we)|could (?:i|we))\b"
)
_NEGATION = re.compile(
    r"(?i)\b(?:not|no|never|without|cannot|nothing|skip\w*|omit\w*|leave out|drop|optional|redundant|unnecessary|harmless|useless)\b|n't\b"
)
_STRENGTH = {"may": 0, "should": 1, "need": 2}
_TYPES = ({"bf16", "bfloat16"}, {"fp16", "float16", "half"}, {"fp32", "float32", "tf32"}, {"inference", "eval", "evaluation", "validation"}, {"fsdp1"}, {"fsdp2"})  # fmt: skip
_FORM = frozenset(
    "a an the is it are do does i we my to of in on at for if and or when with ok okay safe should can must need have call calling use using loss each every once "
    "step optimizer gradient gradients grad norm model that this right".split()
)
_SENTENCES = re.compile(r"(?<=[.?!])\s+|, so ")
_SHARED = 0.4  # of the words of the shorter sentence
_OTHER = {"yes": "no", "no": "yes"}


@dataclass(frozen=True, slots=True)
class Shape:
    """What kind of reply a question waits for."""

    decides: bool  # it wants a yes or a no
    turned: bool  # and asks whether something is wrong, not whether it is right
    kind: str = "fact"  # may, should, need, fact, or said: a statement to confirm
    mine: bool = False  # about the asker's own code
    either: bool = False  # one of two
    sentence: str = ""

    @classmethod
    def of(cls, prose: str) -> Shape:
        asked = _ASKED.search(prose)
        if asked is None and _OPEN.search(prose) is None:
            asked = _INSIDE.search(prose) or _BARE.search(prose)
        confirm = _CONFIRM.search(prose) is not None
        sentence = asked[0] if asked is not None else prose
        either = asked is not None and _EITHER.search(sentence) is not None
        return cls(
            decides=(asked is not None or confirm) and not either,
            turned=asked is not None and _TURNED.search(sentence) is not None,
            kind=_kind(sentence) if asked is not None else "said",
            mine=_MINE.search(prose) is not None and not either and not _THEIRS.search(sentence),
            either=either,
            sentence=sentence,
        )

    def judged(self, wrong: bool) -> str | None:
        """The verdict on the asker's own code, in which something is wrong or nothing was found."""
        if not self.decides or not self.mine:
            return None
        return "yes" if wrong is self.turned else "no"

    def verdict(self, verdict: str | None, turns: bool, wordings: tuple[str, ...]) -> str | None:
        """The verdict that a claim has for its wordings, where this question asks the same as one of them."""
        if not self.decides or self.mine or verdict is None:
            return None
        if verdict == "depends":
            return verdict if wordings else None
        # of a question the sentence that asks, of a statement any of its sentences
        parts = [self.sentence] if self.kind != "said" else _SENTENCES.split(self.sentence)
        for wording in wordings:
            for part in parts:
                if (heard := self._heard(part, _shape(wording), verdict, turns)) is not None:
                    return heard
        return None

    def _heard(self, part: str, other: Shape, verdict: str, turns: bool) -> str | None:
        if other.either or other.mine or not _same_things(part, other.sentence):
            return None
        if _negated(part) != _negated(other.sentence):
            return None
        # `turns`: the verdict is to "is it right?", however the wording asks
        if self.turned != (other.turned and not turns):
            verdict = _OTHER[verdict]
            return verdict if {self.kind, other.kind} <= {"may", "fact"} else None
        return verdict if _follows(verdict, other.kind, self.kind) else None


@cache
def _shape(wording: str) -> Shape:
    return Shape.of(wording)


def _kind(sentence: str) -> str:
    for kind, pattern in (("need", _NEED), ("should", _SHOULD), ("may", _MAY)):
        if pattern.search(sentence):
            return kind
    return "fact"


def _follows(verdict: str, known: str, asked: str) -> bool:
    """Whether a verdict passes from one kind of question to the other: what must be done may be done, what may not be done need not be."""
    if known == asked or asked == "said":
        return True
    if known not in _STRENGTH or asked not in _STRENGTH:
        return False
    stronger = _STRENGTH[known] > _STRENGTH[asked]
    return stronger if verdict == "yes" else not stronger


def _negated(sentence: str) -> bool:
    return len(_NEGATION.findall(sentence)) % 2 == 1


def _content(words: list[str]) -> set[str]:
    return {root(w) for w in words if w not in _FORM}


def _same_things(one: str, two: str) -> bool:
    """Whether two sentences share a subject, put it in the same order, and speak of the same types."""
    a, b = tokens(one), tokens(two)
    subject = _content(b)
    if len(_content(a) & subject) < max(1.0, _SHARED * min(len(subject), len(_content(a)))):
        return False
    if any(bool(t & set(a)) != bool(t & set(b)) for t in _TYPES):
        return False
    first, second = _order(a), _order(b)
    if first is None or second is None:
        return first is second
    return bool(first[0] & second[0]) and bool(first[1] & second[1])


def _order(words: list[str]) -> tuple[set[str], set[str]] | None:
    """What comes first and what comes next, where a sentence says so."""
    for n, word in enumerate(words):
        if word in ("before", "after"):
            sides = _sides(words, n)
            return sides if word == "before" else sides[::-1]
    return None


def _sides(words: list[str], at: int) -> tuple[set[str], set[str]]:
    keep = {"loss", "step", "optimizer", "each", "every"}
    left, right = (
        {root(w) for w in part if w not in _FORM or w in keep}
        for part in (words[:at], words[at + 1 :])
    )
    return left, right
