"""What holds for every rule there is: the catalogue, the texts, the specimens, the fixes."""

from __future__ import annotations

import re
from functools import cache
from textwrap import dedent

import pytest

from fallline.finding import Finding, Severity
from fallline.rule import Rule
from fallline.rules import all_rules, event_rules, rule_by_code, rule_names, series_rules
from fallline.rules._observed import Observed
from fallline.syntax.edits import apply
from fallline.verdict.reading import read_text

RULES = all_rules()
each_rule = pytest.mark.parametrize("rule", RULES, ids=lambda rule: f"{rule.code}-{rule.name}")


def specimens(kind: str) -> list[object]:
    return [
        pytest.param(rule, text, id=f"{rule.code}-{number}")
        for rule in RULES
        for number, text in enumerate(getattr(rule, kind))
    ]


@cache  # what a specimen is must hold in several ways: it is read once for all of them
def found_in(text: str) -> list[Finding]:
    return read_text(text, "train.py")


def expected_lines(rule: Rule, text: str) -> list[int]:
    """The lines that end with `# FLxxx`."""
    return [
        n for n, line in enumerate(text.split("\n"), 1) if re.search(rf"#.*\b{rule.code}\b", line)
    ]


def test_files_are_named_after_the_rules_in_them() -> None:
    assert rule_names() == {rule.code: rule.name for rule in RULES}


def test_rules_over_events_are_known_from_their_files() -> None:
    assert event_rules() == tuple(rule for rule in RULES if rule._defines("check"))


def test_rules_over_runs_are_known_from_their_files_and_from_what_was_observed() -> None:
    over_runs = tuple(rule for rule in RULES if rule._defines("check_series"))
    assert series_rules(rule.code for rule in over_runs) == over_runs
    others = set(over_runs) - set(series_rules())
    assert all(type(rule).check_series is Observed.check_series for rule in others)
    assert series_rules(["FL620", "no such rule"]) == series_rules(["FL620"])


@each_rule
def test_a_rule_yields_to_rules_that_do_not_yield_to_it(rule: Rule) -> None:
    above, todo = set(), [*rule.yields_to]
    while todo:
        code = todo.pop()
        winner = rule_by_code(code)
        assert winner is not None, f"{rule.code} yields to {code}, which is not a rule"
        if code not in above:
            above.add(code)
            todo += winner.yields_to
    assert rule.code not in above


@each_rule
def test_a_rule_is_its_own_document(rule: Rule) -> None:
    for text in (rule.what, rule.why, rule.instead):
        first = text.strip().split("\n")[0]
        assert first and first[-1] in ".:`!?", "the first line is a sentence on its own"
        for block in re.findall(r"```python\n(.*?)```", text, re.DOTALL):
            compile(dedent(block), rule.code, "exec")
    assert bool(rule.fix_safety) == rule.fixable, "a fix says how safe it is"


@each_rule
def test_a_rule_that_the_reader_sees_has_specimens(rule: Rule) -> None:
    if rule.seen_by != "watcher":
        assert rule.wrong and rule.right
    for text in rule.wrong:
        assert expected_lines(rule, text), f"a wrong specimen marks its line with `# {rule.code}`"
    if rule._defines("fix"):
        assert any(
            found.fix for text in rule.wrong for found in found_in(text) if found.code == rule.code
        )


@pytest.mark.parametrize(
    ("rule", "text"), [p for p in specimens("wrong") if p.values[0].seen_by != "watcher"]
)
def test_a_wrong_specimen_is_reported_at_its_line(rule: Rule, text: str) -> None:
    found = [finding.at.line for finding in found_in(text) if finding.code == rule.code]
    assert found == expected_lines(rule, text)


@each_rule
def test_the_first_wrong_specimen_is_told_as_what_it_is(rule: Rule) -> None:
    """A finding that rests on a name may be lowered to a note; the mistake in its plainest form never is."""
    if rule.seen_by != "watcher":
        found = [f for f in found_in(rule.wrong[0]) if f.code == rule.code]
        assert {f.severity for f in found} == {rule.severity}


@each_rule
def test_what_is_told_is_sentences(rule: Rule) -> None:
    """A message begins with a capital or with code, and a fix is named like one."""
    for text in rule.wrong:
        for finding in found_in(text):
            if finding.code != rule.code or rule.code == "FL000":
                continue
            first = finding.message.split()[0].strip("(),:`")
            in_code = first in text or not first.isalpha()
            assert not first[0].islower() or in_code, finding.message
            assert finding.message.endswith((".", "?")), finding.message
            assert finding.fix is None or finding.fix.title[0].isupper(), finding.fix


@pytest.mark.parametrize(("rule", "text"), specimens("right"))
def test_a_right_specimen_is_silent(rule: Rule, text: str) -> None:
    findings = found_in(text)
    assert [f for f in findings if f.code == rule.code or f.severity is not Severity.INFO] == []


@pytest.mark.parametrize(("rule", "text"), [p for p in specimens("wrong") if p.values[0].fixable])
def test_the_fixed_text_is_silent(rule: Rule, text: str) -> None:
    before = {finding.code for finding in found_in(text)}
    for _ in range(text.count(rule.code) + 1):
        fixes = [f.fix for f in found_in(text) if f.code == rule.code and f.fix is not None]
        if not fixes:
            break
        fixed = apply(text, fixes[0].edits)
        assert fixed is not None, "the edits of one fix do not overlap"
        text = fixed
    after = found_in(text)
    assert [f for f in after if f.code == rule.code and f.fix is not None] == []
    assert {f.code for f in after} <= before, "a fix adds nothing"


@pytest.mark.parametrize("rule", all_rules(), ids=lambda r: r.code)
def test_the_facts_a_rule_names_exist(rule: Rule) -> None:
    from fallline.triage.playbook import facts

    assert set(rule.facts) <= facts().keys()


@pytest.mark.parametrize("rule", all_rules(), ids=lambda r: r.code)
def test_a_rules_page_cites_its_facts_with_what_was_measured(rule: Rule) -> None:
    from fallline.proof.record import recorded
    from fallline.report.rule_page import page

    text = page(rule)
    for name in rule.facts:
        outcome = recorded(name)
        assert outcome is None or f"[{name}](../evidence.md#{name}): {outcome.says}" in text
