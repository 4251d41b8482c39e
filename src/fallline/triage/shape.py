"""The shape of a question: does it want a yes or a no, which way round is it asked, and is it about the asker's own code?

A yes or a no is only said where it is certain to what. A claim has a verdict for its own wordings (`ask:`), and a question gets it only if it
asks the same: for a permission or for a duty, about one of two ways or about one, in the same order, with as many negations, of the same type.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache

from fallline.triage.frame import framed, uncommon
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
_BARE = re.compile(rf"(?i)^\W*(?:{_VERBS})\s+\w(?:[^.?!\n]|[.](?=\S)){{0,200}}")
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
_SHOULD = re.compile(r"(?i)\b(?:should(?:n['’]t)?|shall|better to|worth)\b")
_MAY = re.compile(
    r"(?i)\b(?:ok|okay|safe|fine(?![- ]?tun)|allowed|possible|right|correct|normal|good|can (?:i|we|you|one)|may (?:i|we)|could (?:i|we))\b"
)
_NEGATION = re.compile(
    r"(?i)\b(?:not|no|never|without|cannot|nothing|skip\w*|omit\w*|leave out|drop|optional|redundant|unnecessary|harmless|useless)\b|n't\b"
)
# "shouldn't we ...?": English says yes and no to it alike
_EXPECTS = re.compile(
    r"(?i)\b(?:should|is|are|does|do|would|could|must|need)n['’]?t\s+(?:it|we|i|you|this|that|the|there|they)\b"
)
# "shouldn't both be the same?" suggests that they should
_SUGGESTS = re.compile(r"(?i)\b(?:should|would)n['’]?t\b")
# what asks about the sentences before it: "the loss is not divided. Is it a bug?"
_BEFORE = re.compile(
    r"(?i)\W*(?:so |and |but |if so )?(?:"
    r"(?:is|are|was) (?:it|this|that|these|they)(?: really| just| always| still)? (?:an? |the |to be |by )?"
    r"(?:bug|problem|issue|mistake|error|normal|expected|correct|right|ok|okay|fine|true|safe|bad|wrong|necessary|needed|intended|intentional|reasonable|harmful|useful|possible|so|case|design|accident)"
    r"(?: here| behaviou?r| idea| practice| way| or (?:not|wrong|a bug|an accident|(?:just )?(?:a|an accidental) mistake))?"
    r"|am i (?:right|correct|wrong|mistaken)(?: (?:on|about|in) (?:this|that|it))?|is my (?:understanding|assumption|guess) (?:right|correct|wrong)|(?:right|correct|true))\W*"
)
_STATES = re.compile(r"(?i)\b(?:am i|my (?:understanding|assumption|guess)|true|right|so)\b")
_ABOUT = 2  # sentences before it that it may be about
_STRENGTH = {"may": 0, "should": 1, "need": 2}
_TYPES = ({"bf16", "bfloat16"}, {"fp16", "float16", "half"}, {"fp32", "float32", "tf32"}, {"inference", "eval", "evaluation", "validation"}, {"fsdp1"}, {"fsdp2"}, {"only"}, {"enough", "sufficient"}, {"memory", "ram"}, {"slow", "slower", "slows", "faster", "speed", "expensive", "overhead", "time"}, {"up", "increase", "increases", "increasing", "rise", "rises", "rising", "grow", "grows", "higher"}, {"down", "decrease", "decreases", "decreasing", "fall", "falls", "falling", "drop", "drops", "lower"})  # fmt: skip
_FORM = frozenset(
    "a an the is it are do does i we my to of in on at for if and or when with ok okay safe should can must need have call calling use using loss each every once "
    "step optimizer gradient gradients grad norm model that this right".split()
)
_SENTENCES = re.compile(r"(?<=[.?!])\s+|, so ")
# the same question about the other side: its answer is not known from this one
_OPPOSITE = (
    ({"on", "enabled", "enable", "active"}, {"off", "disabled", "disable", "inactive"}),
    ({"higher", "high"}, {"lower", "low"}),
    ({"increase", "increases", "increasing", "rise", "rises", "rising", "up"}, {"decrease", "decreases", "decreasing", "fall", "falls", "falling", "down", "drop", "drops"}),
    ({"faster"}, {"slower"}), ({"more"}, {"less", "fewer"}), ({"better"}, {"worse"}), ({"larger", "bigger", "large", "big"}, {"smaller", "small"}),
    ({"sum", "sums", "summed"}, {"average", "averages", "averaged"}), ({"eval"}, {"train"}), ({"first"}, {"last"}), ({"inside"}, {"outside"}), ({"start", "starts"}, {"end", "ends"}),
    ({"left"}, {"right"}), ({"overfit", "overfitting"}, {"underfit", "underfitting"}), ({"keep", "keeps", "gain"}, {"lose", "loses"}),
)  # fmt: skip
_SHARED = 0.4  # of the words of the shorter sentence
_SHARED_BEFORE = 0.6  # and of a sentence that is only asked about, which says more than it asks
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
    about: tuple[
        str, ...
    ] = ()  # the sentences before it, where it only asks whether they are right
    open: bool = False  # it asks how, why or which, and no yes or no answers that

    @classmethod
    def of(cls, prose: str) -> Shape:
        asked = _ASKED.search(prose)
        if asked is None and _OPEN.search(prose) is None:
            asked = _INSIDE.search(prose) or _BARE.search(prose)
        confirm = _CONFIRM.search(prose) is not None
        sentence = asked[0] if asked is not None else prose
        about = _said_before(prose, sentence) if asked is not None else ()
        either = asked is not None and not about and _EITHER.search(sentence) is not None
        return cls(
            decides=(asked is not None or confirm) and not either,
            turned=asked is not None and _TURNED.search(sentence) is not None,
            kind=_kind(sentence, about) if asked is not None else "said",
            mine=_MINE.search(prose) is not None and not either and not _THEIRS.search(sentence),
            either=either,
            sentence=sentence,
            about=about,
            open=asked is None and not confirm and _OPEN.search(prose) is not None,
        )

    def judged(self, wrong: bool) -> str | None:
        """The verdict on the asker's own code, in which something is wrong or nothing was found."""
        if not self.decides or not self.mine:
            return None
        return "yes" if wrong is self.turned else "no"

    def verdict(self, verdict: str | None, turns: bool, wordings: tuple[str, ...]) -> str | None:
        """The verdict that a claim has for its wordings, where this question asks the same as one of them."""
        heard = self.heard(verdict, turns, wordings)
        return heard[1] if heard else None

    def heard(
        self, verdict: str | None, turns: bool, wordings: tuple[str, ...]
    ) -> tuple[float, str] | None:
        """The same with the share of words that the question and the nearest such wording have in common."""
        if not self.decides or (self.mine and not self.about) or verdict is None:
            return None
        if _EXPECTS.search(self.sentence) and not _SUGGESTS.search(self.sentence):
            return None
        if verdict == "depends":
            return (0.0, verdict) if wordings else None
        # of a question the sentence that asks, of a statement any of its sentences
        said = self.kind == "said" and not self.about
        parts = self.about or (_SENTENCES.split(self.sentence) if said else [self.sentence])
        pairs = [
            (_in_common(part, asked), self._heard(part, other, asked, verdict, turns))
            for other in map(_shape, wordings)
            for asked in [" ".join(other.about) or other.sentence]
            for part in parts
        ]
        return max(((near, said) for near, said in pairs if said is not None), default=None)

    def _heard(self, part: str, other: Shape, asked: str, verdict: str, turns: bool) -> str | None:
        share = _SHARED_BEFORE if self.about else _SHARED
        if other.either or (other.mine and not other.about) or not _same_things(part, asked, share):
            return None
        if _negated(part) != _negated(asked):
            return None
        # `turns`: the verdict is to "is it right?", however the wording asks
        if self.turned != (other.turned and not turns):
            verdict = _OTHER[verdict]
            return verdict if {self.kind, other.kind} <= {"may", "fact"} else None
        # a statement that is to be confirmed asks for what it states: a duty, a permission, a fact
        kind = _kind(part) if self.about and self.kind == "said" else self.kind
        known = _kind(asked) if other.about and other.kind == "said" else other.kind
        return verdict if _follows(verdict, known, kind) else None


@cache
def _shape(wording: str) -> Shape:
    return Shape.of(wording)


def _said_before(prose: str, sentence: str) -> tuple[str, ...]:
    """The last sentences before one that only asks whether they are right; nothing where it says itself what it asks."""
    if _BEFORE.fullmatch(sentence) is None:
        return ()
    before = prose[: max(prose.rfind(sentence), 0)]
    sentences = [s.strip() for s in re.split(r"(?<=[.?!])\s+|\n+|, so ", before) if s.strip()]
    return tuple(sentences[::-1][:_ABOUT])


def _kind(sentence: str, about: tuple[str, ...] = ()) -> str:
    if about and _STATES.search(sentence):
        return "said"
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
    return len(_NEGATION.findall(_SUGGESTS.sub("should", sentence))) % 2 == 1


def _content(words: list[str]) -> set[str]:
    return {root(w) for w in words if w not in _FORM}


def _same_things(one: str, two: str, share: float) -> bool:
    """Whether two sentences share a subject, put it in the same order, and speak of the same types."""
    a, b = tokens(one), tokens(two)
    subject = _content(b)
    if len(_content(a) & subject) < max(1.0, share * min(len(subject), len(_content(a)))):
        return False
    if any(bool(t & set(a)) != bool(t & set(b)) for t in _TYPES) or _opposed(set(a), set(b)):
        return False
    asked, known = _named(one), _named(two)
    if asked and 2 * len(asked & known) < max(1, min(len(asked), len(known))):
        return False
    first, second = _order(a), _order(b)
    if first is None or second is None:
        return first is second
    return bool(first[0] & second[0]) and bool(first[1] & second[1])


@cache
def _named(sentence: str) -> frozenset[str]:
    """What a sentence is about, everyday things aside: a scaler in a checkpoint is not a loss in one."""
    return uncommon(framed(sentence))


def _opposed(one: set[str], two: set[str]) -> bool:
    """Whether one sentence says higher where the other says lower, and neither says both."""
    return any(
        bool(one & this) and bool(two & that) and not one & that and not two & this
        for left, right in _OPPOSITE
        for this, that in ((left, right), (right, left))
    )


def _in_common(one: str, two: str) -> float:
    a, b = _content(tokens(one)), _content(tokens(two))
    return len(a & b) / max(1, len(a | b))


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
