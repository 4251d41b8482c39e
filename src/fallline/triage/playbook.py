"""Playbooks: what each specialist knows, as data that people can read and edit (`playbooks/*.toml`).

    specialist = "gradient-management"

    [[case]]
    id = "clipping-does-not-help"              # stable
    title = "NaN although gradients are clipped"
    rules = ["FL601", "FL620"]                 # findings that turn a question into this case
    says = ["...", ...]                        # how people phrase it
    errors = ["unscale_\\\\(\\\\) has already"]      # regular expressions on pasted messages
    code = ["clip_grad_norm_"]                 # what fragments of code point here
    needs = ["lightning", "accelerat*"]        # words of which a question must hold one, unless a message or a finding leads here: a narrow case is not guessed at
    numbers = ["norm rises"]                   # what numbers in the question point here: loss or norm, falls or rises
    knows = [{ text = "...", backs = ["FL127"] }]              # true whatever is measured
    measure = [{ run = "fallline run train.py", tells = "...", backs = ["FL620"] }]
    tree = [{ when = "...", then = "..." , backs = [...] }]    # from measurement to cause
    fix = [{ title = "...", when = "...", code = "...", because = "...", costs = "...", backs = [...] }]
    avoid = [{ advice = "...", tempts = "...", because = "...", backs = [...] }]
    verify = [{ run = "...", tells = "...", backs = [...] }]

`backs` names what a statement rests on: a rule (`FL201`), or a fact by its name in facts.toml. A test checks that each
exists. Fixes come in order of preference, and each has its condition.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from fallline.specialists import specialist_of
from fallline.triage.kept import kept, tables

if TYPE_CHECKING:
    from fallline.proof.record import Outcome

__all__ = [
    "Avoid",
    "Case",
    "Fact",
    "Fixing",
    "Playbook",
    "Statement",
    "Step",
    "backing",
    "cases_of",
    "facts",
    "playbooks",
]

_HOME = Path(__file__).parent / "playbooks"


class Statement(NamedTuple):
    """Something that is true, and what backs it."""

    text: str
    backs: tuple[str, ...]


class Step(NamedTuple):
    """A measurement (or a verification): what to run, and what the result tells."""

    run: str
    tells: str
    backs: tuple[str, ...]


class Fixing(NamedTuple):
    """A fix; it applies only where `when` has been measured."""

    title: str
    when: str
    code: str
    because: str
    costs: str
    backs: tuple[str, ...]


class Avoid(NamedTuple):
    """Popular advice that is wrong here, and why it tempts."""

    advice: str
    tempts: str
    because: str
    backs: tuple[str, ...]


class Case(NamedTuple):
    """One problem as people meet it."""

    id: str
    specialist: str
    title: str
    says: tuple[str, ...]
    errors: tuple[str, ...]
    code: tuple[str, ...]
    needs: tuple[str, ...]
    numbers: tuple[str, ...]
    rules: tuple[str, ...]
    knows: tuple[Statement, ...]
    measure: tuple[Step, ...]
    tree: tuple[tuple[str, str, tuple[str, ...]], ...]
    fix: tuple[Fixing, ...]
    avoid: tuple[Avoid, ...]
    verify: tuple[Step, ...]

    def texts(self) -> Iterable[str]:
        """Everything that it says, for who wants to know its words."""
        yield from (self.title, *self.says, *(s.text for s in self.knows))
        for step in (*self.measure, *self.verify):
            yield from (step.run, step.tells)
        for when, then, _ in self.tree:
            yield from (when, then)
        for fix in self.fix:
            yield from (fix.title, fix.when, fix.code, fix.because, fix.costs)
        for advice in self.avoid:
            yield from (advice.advice, advice.tempts, advice.because)


class Playbook(NamedTuple):
    """What one specialist knows."""

    specialist: str
    cases: tuple[Case, ...]


class Fact(NamedTuple):
    """A measured fact: what is true, and what the sources said where that was wrong."""

    name: str
    says: str
    row: int | None
    source: str


def _backs(raw: dict[str, Any]) -> tuple[str, ...]:
    return tuple(raw.get("backs", ()))


def _case(specialist: str, raw: dict[str, Any]) -> Case:
    return Case(
        id=raw["id"],
        specialist=specialist,
        title=raw["title"],
        says=tuple(raw.get("says", ())),
        errors=tuple(raw.get("errors", ())),
        code=tuple(raw.get("code", ())),
        needs=tuple(raw.get("needs", ())),
        numbers=tuple(raw.get("numbers", ())),
        rules=tuple(raw.get("rules", ())),
        knows=tuple(Statement(s["text"], _backs(s)) for s in raw.get("knows", ())),
        measure=tuple(Step(s["run"], s["tells"], _backs(s)) for s in raw.get("measure", ())),
        tree=tuple((s["when"], s["then"], _backs(s)) for s in raw.get("tree", ())),
        fix=tuple(
            Fixing(
                s["title"],
                s["when"],
                s.get("code", ""),
                s["because"],
                s.get("costs", ""),
                _backs(s),
            )
            for s in raw.get("fix", ())
        ),
        avoid=tuple(
            Avoid(s["advice"], s.get("tempts", ""), s["because"], _backs(s))
            for s in raw.get("avoid", ())
        ),
        verify=tuple(Step(s["run"], s["tells"], _backs(s)) for s in raw.get("verify", ())),
    )


@cache
def playbooks() -> tuple[Playbook, ...]:
    """All playbooks, in the order of their files."""
    found = []
    for raw in kept("playbooks", lambda: tables(sorted(_HOME.glob("*.toml")))):
        name = raw["specialist"]
        found.append(Playbook(name, tuple(_case(name, c) for c in raw.get("case", ()))))
    return tuple(found)


@cache
def cases_of(code: str) -> tuple[str, ...]:
    """The cases that a finding of this rule turns a question into: those that name it, or its specialist's first one."""
    named = tuple(c.id for book in playbooks() for c in book.cases if code in c.rules)
    if named or code == "FL000":  # a file that cannot be read is not a case
        return named
    who = specialist_of(code).name
    return next((b.cases[0].id,) for b in playbooks() if b.specialist == who)


@cache
def facts() -> dict[str, Fact]:
    """The facts that playbooks cite, by name. What was measured and what is taught come from the record of its experiment."""
    (raw,) = tables([Path(__file__).parent / "facts.toml"])
    return {name: _fact(name, fact) for name, fact in raw.items()}


def _recorded(name: str) -> Outcome | None:
    """What was measured: the record is only read where an answer cites it."""
    from fallline.proof.record import recorded

    return recorded(name)


def _fact(name: str, raw: dict[str, Any]) -> Fact:
    known = _recorded(name)
    if known is not None:
        return Fact(name, known.says, raw.get("row"), known.taught)
    return Fact(name, raw.get("says", ""), raw.get("row"), raw.get("source", ""))


def backing(names: Iterable[str]) -> list[Fact]:
    """What was measured for these facts and rules, each once; a rule without an experiment has nothing to say here."""
    known = facts()
    found = []
    for name in dict.fromkeys(names):
        if name in known:
            found.append(known[name])
        elif (outcome := _recorded(name)) is not None:
            found.append(Fact(name, outcome.says, None, outcome.taught))
    return found
