"""Statements that are false however often they are repeated (`evals/refuted.md`), found in a sentence by the words it holds."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

from fallline.triage.claim import Condition
from fallline.triage.playbook import facts
from fallline.triage.words import Said, spelled, tokens

__all__ = ["Refuted", "refuted", "stated_in"]

_FILE = Path(__file__).parent / "evals" / "refuted.md"
# however the rest of a sentence takes a claim back
_DENIED = re.compile(
    r"(?i)\b(not true|untrue|myth|misconception|false that|wrong to|incorrect to|incorrectly|contrary to|instead of believing|avoid)\b"
    # what it would do is a warning: "a softmax in the model would flatten the gradients"
    r"|\bwould (?:\w+ )?(?:flatten|squash|shrink|hurt|break|slow|ruin|double|cut|lose|hide|train|be (?:wrong|applied twice|counted twice))\b"
)
_RATHER = re.compile(r"(?i)\b(?:rather than|instead of)\b")  # what comes after it is not advised
# two negations: what is not optional is required
_NOT_NEEDLESS = re.compile(
    r"(?i)\b(?:not|never|n't|hardly) (?:\w+ )?(?:optional|unnecessary|redundant|superfluous|needless)\b"
)
# a clause that turns to something else
_APART = re.compile(
    r"(?i)(?:;|\s[—–])\s(?=(?:for|with|without|but|while|whereas|otherwise|under|when|if|instead|apply|look|use)\b)"
)
_EXPLAINED = re.compile(r":\s")
# how a sentence begins that goes on with what the one before speaks of
_GOES_ON = re.compile(
    r"(?i)\W*(?:it|its|this|that|these|those|they|there|the|no|both|so|and|or|then|which|since|because|nothing|all|always|just|\w+ing|you)\b"
)
_TOGETHER = 150  # characters that two sentences may have to be read as one
_NEGATIONS = frozenset({"not", "never", "no", "cannot", "nothing", "neither", "nor", "without"})


@dataclass(slots=True)
class Refuted:
    """One false statement, in several wordings, and what refutes it."""

    id: str
    fact: str
    wrong: list[Condition] = field(default_factory=list)
    negated: list[bool] = field(default_factory=list)  # whether a wording is itself a denial
    right: list[Condition] = field(default_factory=list)
    so: str = ""

    def stated(self, sentence: str, low: str, words: Said, whole: str) -> bool:
        """Whether a sentence makes the statement, and neither denies nor corrects it; `low`: the same in small letters; `whole`: the sentence that it is a clause of."""
        # of all statements a sentence makes hardly one: what takes it back is looked for only then
        made = [
            own
            for condition, own in zip(self.wrong, self.negated, strict=True)
            if condition.holds(words, low)
        ]
        if not made or (not any(made) and not _NEGATIONS.isdisjoint(words)):
            return False
        if _DENIED.search(whole) or any(r.holds(words, low) for r in self.right):
            return False
        advised, *against = _RATHER.split(low, maxsplit=1)
        return not against or any(self._begins_in(advised))

    def _begins_in(self, text: str) -> list[bool]:
        """For each wording, whether a text holds what it is about: its first group."""
        words = spelled(tokens(text))
        return [condition.each[0].holds(words, text) for condition in self.wrong]

    @property
    def measured(self) -> str:
        """What is true, in the words of the record where there is one."""
        fact = facts().get(self.fact)
        return f"{self.so} Measured: {fact.says}" if fact is not None and fact.says else self.so


@cache
def refuted() -> tuple[Refuted, ...]:
    found: list[Refuted] = []
    for line in _FILE.read_text(encoding="utf-8").splitlines():
        key, _, value = line.partition(": ")
        if line.startswith("## "):
            name, _, fact = line[3:].partition(" = ")
            found.append(Refuted(name, fact))
        elif key == "wrong":
            found[-1].wrong.append(Condition(value))
            found[-1].negated.append(not _NEGATIONS.isdisjoint(tokens(value)))
        elif key == "right":
            found[-1].right.append(Condition(value))
        elif key == "so":
            found[-1].so = value
    return tuple(found)


def stated_in(sentence: str, before: str = "") -> list[Refuted]:
    """The false statements that a sentence makes: in one of its clauses, or in it and the one before that it goes on with (set it so. It has no downside)."""
    clauses = [c for c in _APART.split(sentence) if c.strip()]
    found = [claim for clause in clauses for claim in _made_in(clause, sentence)]
    for clause in clauses:
        # what comes before a colon is explained after it: a negation there is about the explanation
        first, *rest = _EXPLAINED.split(clause, maxsplit=1)
        if not found and rest:
            found = _made_in(first, sentence)
    goes_on = _GOES_ON.match(sentence)
    if not found and goes_on and before and len(before) + len(sentence) <= _TOGETHER:
        found = _made_in(f"{before} {sentence}")
    return found


def _made_in(text: str, whole: str = "") -> list[Refuted]:
    text = _NOT_NEEDLESS.sub("required", text)
    low, words = text.lower(), spelled(tokens(text))
    return [claim for claim in refuted() if claim.stated(text, low, words, whole or text)]
