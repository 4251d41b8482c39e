"""Playbooks are data: every statement rests on something, every fix has its condition, all code is read."""

from __future__ import annotations

import ast
import textwrap
import tomllib
from pathlib import Path

import pytest

from fallline.proof.record import recorded
from fallline.rules import all_rules, rule_by_code
from fallline.specialists import SPECIALISTS
from fallline.triage import playbook
from fallline.triage.claim import claims
from fallline.triage.evaluate import refuted
from fallline.triage.playbook import Case, cases_of, facts, playbooks
from fallline.verdict.reading import read_text

CASES = [case for book in playbooks() for case in book.cases]


def test_every_specialist_has_a_playbook() -> None:
    assert {book.specialist for book in playbooks()} == {s.name for s in SPECIALISTS}
    assert len({case.id for case in CASES}) == len(CASES)


@pytest.mark.parametrize("case", CASES, ids=lambda c: c.id)
def test_every_statement_is_backed(case: Case) -> None:
    stated = [*case.knows, *case.measure, *case.fix, *case.avoid, *case.verify]
    for backs in [*(s.backs for s in stated), *(b for _, _, b in case.tree)]:
        assert backs
        assert all(name in facts() or rule_by_code(name) is not None for name in backs), backs
    assert all(rule_by_code(code) is not None for code in case.rules)


@pytest.mark.parametrize("case", CASES, ids=lambda c: c.id)
def test_a_case_measures_before_it_prescribes(case: Case) -> None:
    assert len(case.says) >= 5 and case.measure and case.verify and case.knows
    assert all(fix.when and fix.because for fix in case.fix)
    assert all(avoid.because for avoid in case.avoid)


@pytest.mark.parametrize("case", CASES, ids=lambda c: c.id)
def test_the_code_in_a_case_is_right(case: Case) -> None:
    for fix in case.fix:
        if not fix.code:
            continue
        body = fix.code
        if "return " in body and "def " not in body:
            body = "def f():\n" + textwrap.indent(body, "    ")
        ast.parse(body)
        found = read_text("import torch\n" + body)
        assert [f for f in found if f.severity != "info"] == [], (case.id, fix.title)


@pytest.mark.parametrize("name", facts())
def test_a_fact_is_measured_or_says_what_was_read(name: str) -> None:
    written = tomllib.loads((Path(playbook.__file__).parent / "facts.toml").read_text())[name]
    assert facts()[name].says
    assert ("says" in written) == (recorded(name) is None), "what can be measured is not typed"


def test_every_fact_is_used() -> None:
    """A fact that no statement, no claim, no rule and no refuted claim rests on was measured for nobody."""
    stated = {
        n
        for c in CASES
        for s in (*c.knows, *c.measure, *c.fix, *c.avoid, *c.verify)
        for n in s.backs
    }
    stated |= {name for c in CASES for _, _, backs in c.tree for name in backs}
    stated |= {claim.fact for claim in refuted()} | {n for rule in all_rules() for n in rule.facts}
    stated |= {name for claim in claims() for name in claim.backs}
    assert facts().keys() <= stated


def test_every_rule_leads_to_a_case() -> None:
    assert {rule.code for rule in all_rules() if not cases_of(rule.code)} == {"FL000"}
