"""Whether a sentence states the opposite of what is known (`evals/true.toml`).

What is true is written once, as a proposition: of what, which relation, to what. A sentence that names both and has the other polarity, or the other order, contradicts it in whatever words; one that says the same,
denies the opposite, or warns of it does not.
"""

from __future__ import annotations

import re
import tomllib
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from fallline.triage.playbook import facts

__all__ = ["Proposition", "contradicted_in", "propositions"]

_FILE = Path(__file__).parent / "evals" / "true.toml"
_THING = re.compile(r"\{([a-z]\w*)\}")
_NOT = r"(?:\bnot\b|n't\b|\bnever\b|\bno\b(?! longer)|\bnor\b|\bneither\b|\bcannot\b|\bwithout\b|\bhardly\b|\brarely\b|\bnothing\b|\bavoid\w*|\bstop (?:using|calling)\b|\binstead of\b|\brather than\b)"
_NEGATION = re.compile(_NOT)
_CLAUSE = re.compile(
    r"[,;:(]\s|\b(?:because|since|but|while|whereas|although|though|however|which|otherwise|and then)\b|\bso\b(?! that)"
)
# a sentence that takes it back, asks, or says what a mistake would do
_TAKEN_BACK = re.compile(
    r"\?\s*$|\b(?:not true|untrue|myth|misconception|false that|wrong to|a mistake|incorrect|contrary to|it is wrong|would|does nothing|no effect on)\b"
)
_ELSE = re.compile(r"\b(?:otherwise|or else|else|lest|so that|if you forget|unless)\b")
_NEEDLESS = re.compile(
    rf"(?:{_NOT} (?:\w+ )?)?(?:\bno need\b|(?:\bnot|n't|\bnever) (?:\w+ )?(?:need|require|necessary|have to|has to|bother)\w*|\bunnecessary\b|\boptional\b|\bredundant\b|\bsuperfluous\b|\bneedless\b|\bskip(?:ped|ping)?\b|\bomit\w*|\bleav\w+ (?:it )?out\b|\bdo without\b|\bnot matter\b)"
)
_STILL_NEEDED = re.compile(
    rf"^{_NOT} (?:\w+ )?(?:unnecessary|optional|redundant|superfluous|needless|skip|omit|leav)|^{_NOT} {_NOT}"
)
_REQUIRES = re.compile(
    r"\b(?:need(?:s|ed)?|must|requires?|required|have to|has to|should|always)\b"
)
# advice to have it: at the beginning of a clause
_HAVE = re.compile(
    r"(?:^|[,;:(]\s*|\b(?:so|and|then|just|always|please|should|to) )(?:just |always |still |also )?(?:keep|use|add|enable|leave|turn on|switch on)\b"
)
_SAME = re.compile(
    r"\b(?:same|identical\w*|equal\w*|equivalent\w*|interchangeable|no difference|do(?:es)? not differ|only the implementation)\b"
)
# what a sentence speaks of without saying it: a condition, a finding, another's opinion
_SPOKEN_OF = re.compile(
    r"\b(?:if|whether|finds?|found|detects?|reports?|taught|people say|warns?)\b"
)
_LINK = re.compile(r"\]\([^)\s]*\)|\b\w+(?:-\w+){2,}|[*\[\]]")
_NEAR = 60  # characters between a thing and what is said of its need
_ENDS = re.compile(r"[;:]\s|\.\s|\b(?:while|but|whereas)\b")
_GAP = r"[^.;,]{0,60}?"


@dataclass(frozen=True, slots=True)
class Proposition:
    """One thing that is true; the patterns are those of its two sides."""

    kind: str
    of: str
    that: str
    needs: str
    unless: str
    denial: bool  # whether the other side is itself said with a negation
    backs: str
    so: str

    @property
    def measured(self) -> str:
        """What is true, in the words of the record where there is one."""
        fact = facts().get(self.backs)
        return f"{self.so} Measured: {fact.says}" if fact is not None and fact.says else self.so

    def contradicted(self, text: str) -> bool:
        """Whether a text in small letters states the opposite."""
        if not re.search(self.of, text) or (self.needs and not re.search(self.needs, text)):
            return False
        if self.that and not re.search(self.that, text):
            return False
        if self.unless and re.search(self.unless, text):
            return False
        return _OPPOSITE[self.kind](self, text)


def _does_it(true: Proposition, text: str) -> bool:
    """`of` is said to do what it does not do."""
    things = list(re.finditer(true.of, text))
    return any(
        not _negated(text, match, true.denial)
        and not _in_a_warning(text, match.start())
        and any(_said_of(text, thing, match) for thing in things)
        for match in re.finditer(true.that, text)
    )


def _said_of(text: str, thing: re.Match[str], match: re.Match[str]) -> bool:
    """Whether what a match says is said of a thing: the thing comes shortly before it, not taken back between them, or is in the same clause."""
    if thing.start() >= match.end():
        gap = text[match.end() : thing.start()]
        return len(gap) <= _NEAR and _CLAUSE.search(gap) is None
    gap = text[thing.end() : max(thing.end(), match.start())]
    return len(gap) <= _NEAR and _ENDS.search(gap) is None and _NEGATION.search(gap) is None


def _does_it_not(true: Proposition, text: str) -> bool:
    """`of` is said not to do what it does."""
    return any(
        _NEGATION.search(_before(text, match.start())) is not None
        and not _in_a_warning(text, match.start())
        for match in re.finditer(true.that, text)
    )


def _the_same(true: Proposition, text: str) -> bool:
    return any(
        not _negated(text, match, match[0].startswith(("no ", "do")))
        for match in _SAME.finditer(text)
    )


def _needless(true: Proposition, text: str) -> bool:
    """What is needed is called needless: the word is beside it."""
    things = list(re.finditer(true.of, text))
    for match in _NEEDLESS.finditer(text):
        if _STILL_NEEDED.search(match[0]) or _in_a_warning(text, match.start()):
            continue
        if any(_between(text, match, thing) for thing in things):
            return True
    return False


def _between(text: str, one: re.Match[str], two: re.Match[str]) -> bool:
    """Whether two matches are near each other in one clause."""
    first, last = sorted((one, two), key=lambda m: m.start())
    gap = text[first.end() : max(first.end(), last.start())]
    return len(gap) <= _NEAR and _CLAUSE.search(gap) is None and " if " not in gap


def _required(true: Proposition, text: str) -> bool:
    """What is not needed is demanded."""
    return any(
        not _NEGATION.search(_before(text, match.start()) + text[match.end() : match.end() + 5])
        and any(_between(text, match, thing) for thing in re.finditer(true.of, text))
        for demands in (_REQUIRES, _HAVE)
        for match in demands.finditer(text)
    )


def _other_order(true: Proposition, text: str) -> bool:
    first, second = true.of, true.that
    ways = (
        rf"{first}{_GAP}\bafter\b{_GAP}{second}",
        rf"{second}{_GAP}\bbefore\b{_GAP}{first}",
        rf"^\W*after\b{_GAP}{second}[^.;]{{0,60}}?{first}",
        rf"^\W*before\b{_GAP}{first}[^.;]{{0,60}}?{second}",
    )
    return any(
        _NEGATION.search(text[: match.end()]) is None and not _in_a_warning(text, match.start())
        for way in ways
        for match in re.finditer(way, text)
    )


_OPPOSITE = {
    "not": _does_it,
    "does": _does_it_not,
    "differ": _the_same,
    "needed": _needless,
    "idle": _required,
    "order": _other_order,
}


def _before(text: str, at: int) -> str:
    """The clause up to a place."""
    return text[max((m.end() for m in _CLAUSE.finditer(text, 0, at)), default=0) : at]


def _negated(text: str, match: re.Match[str], denial: bool) -> bool:
    own = "" if denial or match[0].startswith("no ") else match[0]
    return _NEGATION.search(_before(text, match.start()) + own) is not None


def _in_a_warning(text: str, at: int) -> bool:
    """Whether a place comes after `otherwise`, or in a condition: it says what happens to those who do not follow."""
    return _ELSE.search(text[:at]) is not None or _SPOKEN_OF.search(_before(text, at)) is not None


@cache
def propositions() -> tuple[Proposition, ...]:
    raw = tomllib.loads(_FILE.read_text(encoding="utf-8"))
    things = raw["things"]

    def whole(pattern: str) -> str:
        while _THING.search(pattern):
            pattern = _THING.sub(lambda m: things[m[1]], pattern)
        return pattern

    return tuple(
        Proposition(
            kind=row["kind"],
            of=whole(row["of"]),
            that=whole(row.get("that", "")),
            needs=whole(row.get("needs", "")),
            unless=whole(row.get("unless", "")),
            denial=row.get("denial", False),
            backs=row["backs"],
            so=row["so"],
        )
        for row in raw["true"]
    )


def contradicted_in(sentence: str, before: str = "") -> list[Proposition]:
    """The propositions that a sentence contradicts; one that begins with `it` or `this` is read with the one before it."""
    low = _LINK.sub(" ", sentence.lower().replace("`", "").replace("’", "'"))
    if before and re.match(r"(?:it|this|that|they|these|those)\b", low):
        low = f"{before.lower().replace('`', '')} {low}"
    if _TAKEN_BACK.search(low):
        return []
    return [true for true in propositions() if true.contradicted(low)]
