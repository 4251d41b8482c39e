"""What the sources ask for is covered: every item names entries of a playbook that exist, and a scenario whose answer shows them."""

from __future__ import annotations

from collections import Counter
from functools import cache
from pathlib import Path

import pytest

from fallline.docs.ask_page import Item, items
from fallline.report.answer import chapter
from fallline.triage import answer
from fallline.triage.evaluate import scenarios
from fallline.triage.evidence import gather
from fallline.triage.playbook import Case, playbooks

ITEMS = items(Path(__file__).parents[2] / "evals" / "coverage.toml")
CASES = {case.id: case for book in playbooks() for case in book.cases}
SCENARIOS = {scenario.id: scenario for scenario in scenarios()}


def texts(case: Case) -> dict[str, list[str]]:
    """What a case holds, by the kind of entry: the beginning of each text names it."""
    return {
        "rule": list(case.rules),
        "knows": [s.text for s in case.knows],
        "measure": [s.run for s in case.measure],
        "tree": [when for when, _, _ in case.tree],
        "fix": [f.title for f in case.fix],
        "avoid": [a.advice for a in case.avoid],
        "verify": [s.run for s in case.verify],
    }


@cache
def answered(scenario: str) -> tuple[list[str], str]:
    """The cases that answer a scenario, and the answer as people read it."""
    question = SCENARIOS[scenario].question
    reply = answer(question, gather(question))
    return [case.id for case in reply.cases], " ".join(chapter(reply).split())


def test_every_item_of_the_sources_is_there() -> None:
    counts = Counter(item.kind for item in ITEMS)
    assert counts["scenario"] == 18 and counts["pitfall"] == 10
    assert counts["rationalisation"] == 28 and counts["red flag"] == 16
    for kind in ("pitfall", "rationalisation", "red flag"):
        numbers = [int(item.number) for item in ITEMS if item.kind == kind]
        assert numbers == list(range(1, len(numbers) + 1))
    assert len({(item.kind, item.number) for item in ITEMS}) == len(ITEMS)
    assert counts["topic"] >= 40


@pytest.mark.parametrize("item", ITEMS, ids=lambda i: f"{i.kind} {i.number}")
def test_an_items_entries_and_scenarios_exist(item: Item) -> None:
    held = texts(CASES[item.case])
    assert item.entries and item.scenarios
    for entry in item.entries:
        kind, _, beginning = entry.partition(": ")
        found = [text for text in held[kind] if text.startswith(beginning)]
        assert found, f"{item.case} has no {entry!r}"
    assert set(item.scenarios) <= SCENARIOS.keys()


@pytest.mark.parametrize("item", ITEMS, ids=lambda i: f"{i.kind} {i.number}")
def test_the_answers_to_an_items_scenarios_show_its_entries(item: Item) -> None:
    held = texts(CASES[item.case])
    for scenario in item.scenarios:
        cases, _ = answered(scenario)
        assert item.case in cases, f"{scenario} is answered from {cases}"
    together = " ".join(answered(scenario)[1] for scenario in item.scenarios)
    for kind, _, beginning in (entry.partition(": ") for entry in item.entries):
        if kind != "rule":
            (text, *_) = (t for t in held[kind] if t.startswith(beginning))
            assert " ".join(text.split()) in together, f"no answer shows {kind}: {text}"


def test_the_scenarios_of_the_sources_are_the_items() -> None:
    named = {s for item in ITEMS if item.kind == "scenario" for s in item.scenarios}
    assert named == {s.id for s in SCENARIOS.values() if s.source}


def test_every_case_is_asked_for() -> None:
    """A case that no item of the sources and no scenario reaches is one that nobody has tested."""
    reached = {case for scenario in SCENARIOS for case in answered(scenario)[0]}
    assert reached == CASES.keys()
