"""Grading advice: scenarios with what an answer must say, must not say, and in which order; and its code is read.

    id = "unscale-before-clip"
    source = "002, scenario 1"                       # where the scenario comes from; "" for our own
    routes = ["mixed-precision-and-optimization"]    # the first is who should answer; the others take part
    question = '''...'''                             # as a person would write it, code in fences
    shows = ["FL201"]                                # what the reader finds in the code; of `ask` only
    must_say = ['unscale_']                          # the ideas of a right answer, in the text people read: regular expressions, any case
    more_say = ['FL201']                             # and what `ask --more` adds; an agent need not say it
    must_not_say = [{ says = 'no effect', fact = "clip-scaled-freezes-sgd" }]
    order = [['fallline check', '## Fixes']]         # the first before the second

Beside a scenario's own list, no answer may state what evals/refuted.toml refutes. What an answer advises against
(under a heading such as Avoid, or in a sentence that denies it) is not what it states.
"""

from __future__ import annotations

import re
import textwrap
import tomllib
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from fallline.errors import UsageError
from fallline.triage.evidence import lines_back
from fallline.triage.opposite import contradicted_in
from fallline.triage.playbook import facts
from fallline.triage.refuted import stated_in
from fallline.verdict.reading import read_text

__all__ = ["KINDS", "Complaint", "Scenario", "grade", "grade_text", "judge", "refuted", "scenarios"]

HOME = Path(__file__).parent / "evals"

# What can be wrong with an answer, from the gravest on, and how a report counts it.
KINDS = {
    "refuted": "refuted statements",
    "code": "mistakes in code",
    "order": "fixes before measurements",
    "unsaid": "things left unsaid",
    "route": "wrong routes",
    "silence": "missing answers",
}

_FENCE = re.compile(r"^[ \t]*```[ \t]*(\w*)[^\n]*\n(.*?)^[ \t]*```", re.S | re.M)
_PYTHON = frozenset({"", "py", "python", "python3"})
_HEADING = re.compile(r"^\s*(?:#{1,6}\s|\*\*[^*]+\*\*:?\s*$)")
_AGAINST = re.compile(
    r"(?i)\b(avoid|wrong|don.?t|do not|mistakes?|myths?|bad|incorrect|pitfalls?)\b|❌"
)
_DENIES = re.compile(
    r"(?i)\b(not|never|no longer|cannot|nothing|neither|nor|wrong|false|myth|avoid|untrue|incorrect|rather than|instead of)\b|n['’]t\b"
)
_SENTENCE = re.compile(r"(?<=[.!?])\s+|\n\s*(?:[-*]|\d+\.)\s+|\n\s*\n")
_LONGEST = 600
_IMPORTS = "import torch\nimport torch.nn as nn\nimport torch.nn.functional as F\n"


@dataclass(frozen=True, slots=True)
class Claim:
    """A false statement, and the fact that refutes it."""

    says: str
    fact: str


@dataclass(frozen=True, slots=True)
class Scenario:
    """One question, and what a good answer to it does."""

    id: str
    source: str
    question: str
    routes: tuple[str, ...]
    shows: tuple[str, ...]
    must_say: tuple[str, ...]
    must_not_say: tuple[Claim, ...]
    order: tuple[tuple[str, str], ...]
    more_say: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Complaint:
    """One thing that is wrong with an answer, what backs the complaint, and of which kind it is (the keys of `KINDS`)."""

    text: str
    backs: str = ""
    kind: str = "unsaid"

    def __str__(self) -> str:
        return f"{self.text} [{self.backs}]" if self.backs else self.text


def scenarios(home: Path | None = None) -> list[Scenario]:
    """The scenarios of a folder of TOML files (each holds `[[scenario]]` tables), in order of their names."""
    folder = home or HOME / "scenarios"
    paths = sorted(folder.glob("*.toml"))
    if not paths:
        raise UsageError(f"there are no scenarios (*.toml) in {folder}")
    found: list[Scenario] = []
    for path in paths:
        try:
            raw = tomllib.loads(path.read_text(encoding="utf-8"))
            found += [_scenario(row) for row in raw["scenario"]]
        except (tomllib.TOMLDecodeError, KeyError, TypeError, ValueError) as error:
            raise UsageError(f"{path} is not a file of scenarios: {error}") from None
    return found


def _scenario(row: dict[str, Any]) -> Scenario:
    return Scenario(
        row["id"],
        row.get("source", ""),
        row["question"],
        tuple(row.get("routes", ())),
        tuple(row.get("shows", ())),
        tuple(row.get("must_say", ())),
        tuple(Claim(c["says"], c["fact"]) for c in row.get("must_not_say", ())),
        tuple((a, b) for a, b in row.get("order", ())),
        tuple(row.get("more_say", ())),
    )


@cache
def refuted() -> tuple[Claim, ...]:
    """The statements that no answer may make."""
    raw = tomllib.loads((HOME / "refuted.toml").read_text(encoding="utf-8"))
    return tuple(Claim(c["says"], c["fact"]) for c in raw["claim"])


def grade(
    scenario: Scenario, text: str, routes: Iterable[str] | None = None, more: str = ""
) -> list[Complaint]:
    """What is wrong with an answer to a scenario. `routes` are the specialists of `ask`, and `more` is its long form; agents have neither."""
    found: list[Complaint] = []
    whole = more or text
    if routes is not None:
        named = list(routes)
        if scenario.routes and (not named or named[0] != scenario.routes[0]):
            found.append(
                Complaint(
                    f"routes to {named[0] if named else 'nobody'}, not to {scenario.routes[0]}",
                    kind="route",
                )
            )
        found += [
            Complaint(f"leaves out {r}", kind="route")
            for r in scenario.routes[1:]
            if r not in named
        ]
        if not scenario.routes and named:
            found.append(
                Complaint(f"routes to {named[0]}, though the question is not ours", kind="route")
            )
        found += [Complaint(f"does not show {c}") for c in scenario.shows if c not in whole]
    # how `ask` says that a question is not ours is its own affair; an agent may answer it
    for pattern in scenario.must_say if scenario.routes or routes is not None else ():
        if not re.search(pattern, text, re.I | re.S):
            found.append(Complaint(f"does not say {_worded(pattern)}"))
    for pattern in scenario.more_say if more else ():
        if not re.search(pattern, more, re.I | re.S):
            found.append(Complaint(f"--more does not say {_worded(pattern)}"))
    found += _claims(text, scenario.must_not_say)
    for first, then in scenario.order:
        one, two = re.search(first, whole, re.I), re.search(then, whole, re.I)
        if two and (one is None or one.start() > two.start()):
            found.append(Complaint(f"says {_worded(then)} before {_worded(first)}", kind="order"))
    said = {c.text.partition("”")[0] for c in found if c.kind == "refuted"}
    further = judge(text) if routes is None else grade_text(text)
    further += grade_text(more) if more else []
    return found + [c for c in further if c.text.partition("”")[0] not in said]


def _worded(pattern: str) -> str:
    """A pattern as a person would put it: its alternatives, with gaps for what may stand between."""
    plain = re.sub(r"(?<!\\)\.(?:\*|\{[\d,]+\})", " … ", pattern)
    plain = re.sub(r"\\[sd]\+?", "…", plain)
    plain = re.sub(r"\\(.)", r"\1", plain)
    # a bar inside brackets belongs to a word, not to the list
    choices = re.split(r"\|(?![^(]*\))", plain)
    return " or ".join(f"“{choice.strip()}”" for choice in choices)


def grade_text(text: str) -> list[Complaint]:
    """What is wrong with an answer whatever was asked: refuted statements, and mistakes in its code."""
    return _claims(text, refuted()) + _code(text)


def judge(text: str) -> list[Complaint]:
    """What is known to be wrong in advice, whoever gave it: also what refuted.md recognises by the words of a sentence.

    Our own chapters quote what they refute, so they are graded by `grade_text`.
    """
    return _refuted(text) + _code(text)


def _refuted(text: str) -> list[Complaint]:
    """What is known to be false in it, each sentence once."""
    found = _claims(text, refuted())
    complained = " ".join(c.text for c in found)
    before = ""
    for sentence in _stated(text):
        shown = textwrap.shorten(sentence, 100)
        # the record of a measurement, by its name, is not a statement of the answer's
        if shown not in complained and not sentence.startswith(("- `", "`")):
            known = [(c.fact, c.measured) for c in stated_in(sentence, before)]
            known += [(c.backs, c.measured) for c in contradicted_in(sentence, before)]
            for fact, measured in known[:1]:
                backs = fact if fact.startswith("FL") else f"fact {fact}"
                found.append(Complaint(f"says “{shown}”; {measured}", backs, "refuted"))
        before = sentence
    return found


def _claims(text: str, claims: Iterable[Claim]) -> list[Complaint]:
    stated = _stated(text)
    found = []
    for claim in claims:
        for sentence in stated:
            if _states(sentence, claim):
                fact = facts()[claim.fact]
                shown = textwrap.shorten(sentence, 100)
                found.append(
                    Complaint(
                        f"says “{shown}”; measured: {fact.says}", f"fact {fact.name}", "refuted"
                    )
                )
                break
    return found


def _states(sentence: str, claim: Claim) -> bool:
    """Whether a sentence makes the claim and does not deny it. Some claims are denials themselves: `it does not affect the backbone`."""
    match = re.search(claim.says, sentence, re.I)
    if match is None or _DENIES.search(sentence[: match.start()] + sentence[match.end() :]):
        return False
    return _DENIES.search(match[0]) is None or _DENIES.search(claim.says) is not None


def _stated(text: str) -> list[str]:
    """The sentences of an answer, without its code and without what is under a heading such as Avoid."""
    lines: list[str] = []
    against = False
    for line in _FENCE.sub("\n\n", text).splitlines():
        if _HEADING.match(line):
            against = _AGAINST.search(line) is not None
            line = f"\n{line}\n"
        if not against:
            lines.append(line)
    sentences = [" ".join(s.split()) for s in _SENTENCE.split("\n".join(lines)) if s.strip()]
    # nobody writes sentences this long; the patterns would take their square in time
    return [s[i : i + _LONGEST] for s in sentences for i in range(0, len(s), _LONGEST)]


def _code(text: str) -> list[Complaint]:
    found: list[Complaint] = []
    prose = _FENCE.sub("", text)
    for match in _FENCE.finditer(text):
        language, body = match.group(1).lower(), textwrap.dedent(match.group(2))
        before = text[: match.start()].rstrip().rsplit("\n", 1)[-1]
        against = _AGAINST.search(before) is not None or "❌" in body or "# wrong" in body.lower()
        if language not in _PYTHON or against:
            continue
        for finding in read_text(_IMPORTS + body, "<answer>"):
            # an unmarked block may be a log or a command line
            if finding.severity == "info" or (finding.code == "FL000" and not language):
                continue
            if finding.code in prose:  # an answer that names the mistake knows of it
                continue
            said = f"line {finding.at.line} of a block: {finding.message}"
            found.append(
                Complaint(
                    f"code, {lines_back(said, _IMPORTS.count(chr(10)))}", finding.code, "code"
                )
            )
    return found
