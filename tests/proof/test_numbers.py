"""Every number of ours in the advice and the documents is measured: by the experiment that the sentence cites, or by a benchmark.

A number is looked at where it has a unit or is a ratio ("40 %", "4 times", "12 ms"). It must be found, rounded as it is written, in the record of
what the sentence rests on. What is not a measurement (a limit of a format, a default of torch, arithmetic) is listed below with its reason.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from fallline.proof.record import all_recorded
from fallline.rule import Rule
from fallline.rules import all_rules
from fallline.triage.playbook import Case, playbooks

ROOT = Path(__file__).parent.parent.parent
UNIT = (
    r"(?:%|percent\b|per cent\b|x\b|times\b|-fold\b|fold\b|[µmn]?s\b|seconds?\b|minutes?\b|hours?\b|[KMGT]i?B\b|bytes\b"
    r"|FLOPs?\b|all-reduces\b|batches\b|updates\b|steps\b)"
)
_N = r"\d[\d,]*(?:\.\d+)?(?:e-?\d+)?"
NUMBER = re.compile(
    rf"(?<![\w.^/-])(?P<n>{_N})(?: ?(?:to|or|and|against|instead of|-|–) ?(?P<m>{_N}))? ?{UNIT}"
    r"|(?<![\w.^/-])(?!0\d)(?P<d>\d+\.\d+(?:e-?\d+)?|\d+e-?\d+|\d{1,3}(?:,\d{3})+)(?![\w.]*\d)"
)
VERSION = re.compile(
    r"(?i)\b(?:(?:py)?torch|python|transformers|lightning|accelerate|fabric|triton|numpy|cuda)\s+[\d.]+\d"
)
ANY = re.compile(r"\d[\d,]*(?:\.\d+)?(?:e[-+]?\d+)?")

# Not measured, and not to be, and why.
ALLOWED = {
    "0.5": "pow(0.5): an exponent, in a sentence",
    "0.167": "the variance of the rnn example's targets: arithmetic",
}


@dataclass(frozen=True)
class Text:
    """A piece of text, where it is, and the rules and facts it rests on; none means any."""

    where: str
    words: str
    backs: tuple[str, ...] = ()


def written(text: str) -> Iterator[tuple[str, str]]:
    """The numbers with a unit, each with the words around it. A table between marks is what a run has written there."""
    prose = re.sub(r"<!-- (\w+) -->.*?<!-- end of \1 -->", " ", text, flags=re.DOTALL)
    prose = re.sub(r"```.*?```|`[^`\n]*`", " ", prose, flags=re.DOTALL)
    for match in NUMBER.finditer(VERSION.sub(" ", prose)):
        for number in (match["n"], match["m"], match["d"]):
            if number:
                yield number, match[0]


def values(text: str) -> set[float]:
    return {float(n.replace(",", "")) for n in ANY.findall(text)}


def measured(backs: Iterable[str]) -> set[float]:
    """Every number that these experiments came to."""
    found: set[float] = set()
    for name in backs:
        outcome = all_recorded().get(name)
        if outcome is not None:
            found |= values(f"{outcome.conclusion} {outcome.claim} {' '.join(outcome.holds)}")
            found |= {
                abs(float(v))
                for side in outcome.sides.values()
                for v in side.values()
                if isinstance(v, int | float)
            }
    return found


def known(number: str, among: set[float]) -> bool:
    """Whether one of them is this number, to the digits that are written."""
    wanted = float(number.replace(",", ""))
    digits = len(number.partition(".")[2].partition("e")[0])
    room = 0.51 * 10.0**-digits
    if (
        not digits and wanted >= 100
    ):  # "about 2,300 times": the last digits of a large number are round
        room = max(room, 0.05 * wanted)
    return any(abs(wanted - value) <= room for value in among)


def cases(case: Case) -> Iterator[Text]:
    for statement in case.knows:
        yield Text(case.id, statement.text, statement.backs)
    for step in (*case.measure, *case.verify):
        yield Text(case.id, step.tells, step.backs)
    for when, then, backs in case.tree:
        yield Text(case.id, f"{when} {then}", backs)
    for fix in case.fix:
        yield Text(case.id, f"{fix.title} {fix.when} {fix.because} {fix.costs}", fix.backs)
    for avoid in case.avoid:  # the advice itself is what others say
        yield Text(case.id, avoid.because, avoid.backs)


def rules(rule: Rule) -> Iterator[Text]:
    for words in (rule.what, rule.why, rule.instead, rule.fix_safety):
        yield Text(rule.code, words, (rule.code, *rule.facts))


TEXTS = [
    *(t for book in playbooks() for case in book.cases for t in cases(case)),
    *(t for rule in all_rules() for t in rules(rule)),
]
PAGES = [
    ROOT / "README.md",
    *(p for p in sorted((ROOT / "docs").glob("*.md")) if p.name not in {"evidence.md", "cli.md"}),
]


def unmeasured(text: Text, among: set[float]) -> list[str]:
    return [
        shown
        for number, shown in written(text.words)
        if shown not in ALLOWED and not known(number, among)
    ]


@pytest.mark.parametrize("where", sorted({t.where for t in TEXTS}))
def test_numbers_in_the_advice_are_measured(where: str) -> None:
    texts = [t for t in TEXTS if t.where == where]
    found = {shown: t.words for t in texts for shown in unmeasured(t, measured(t.backs))}
    assert found == {}


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.name)
def test_numbers_on_a_page_are_measured(page: Path) -> None:
    said = " ".join(f"{o.claim} {o.conclusion}" for o in all_recorded().values())
    results = (ROOT / "benchmarks/RESULTS.md").read_text(encoding="utf-8")
    assert (
        unmeasured(Text(page.name, page.read_text(encoding="utf-8")), values(said + results)) == []
    )


def test_a_typed_number_is_caught() -> None:
    among = measured(["FL104"])
    right = Text("a", "The first step is 4.00 times too long.")
    assert unmeasured(right, among) == []
    assert unmeasured(Text("a", "It is 17.3 times too long."), among) == ["17.3 times"]
    assert unmeasured(Text("a", "It costs 5 to 9 % of a step."), among)


def test_what_is_allowed_is_still_written_somewhere() -> None:
    everything = " ".join([t.words for t in TEXTS] + [p.read_text(encoding="utf-8") for p in PAGES])
    assert [shown for shown in ALLOWED if shown not in everything] == []
