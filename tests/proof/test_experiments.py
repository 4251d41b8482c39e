"""Every claim is measured again here. Timings are not looked at, conditions are."""

from __future__ import annotations

import math
import re

import pytest

torch = pytest.importorskip("torch")

from fallline.proof.experiment import all_experiments, where  # noqa: E402
from fallline.proof.measure import measure  # noqa: E402
from fallline.proof.record import recorded  # noqa: E402
from fallline.rules import all_rules, rule_by_code  # noqa: E402
from fallline.triage.playbook import facts  # noqa: E402

RULES = [name for name in where() if re.fullmatch(r"FL\d{3}", name)]
FACTS = [name for name in where() if name not in RULES]


@pytest.mark.parametrize("name", where())
def test_a_claim_is_proved(name: str) -> None:
    (outcome,) = measure([name])
    if outcome.verdict == "unavailable" and outcome.needs == "cuda":
        assert not torch.cuda.is_available()
        return  # its own test, below, looks at what was recorded where there was a device
    assert outcome.verdict == "proved", (outcome.problem, outcome.holds, outcome.conclusion)
    assert re.search(r"\d|Error", outcome.conclusion), "it says what was measured, or raised"
    assert math.isfinite(outcome.seconds) and outcome.claim
    assert outcome.sides and all(outcome.sides.values())
    assert all(len(ys) <= 100 for ys in outcome.curves.values())
    assert not outcome.positions or {len(ys) for ys in outcome.curves.values()} == {
        len(outcome.positions)
    }
    if outcome.is_rule:
        wrong, right = outcome.sides["wrong"], outcome.sides["right"]
        assert wrong != right, "the mistake changes something"
        assert wrong.keys() & right.keys(), "something can be compared"


@pytest.mark.parametrize("name", where())
def test_a_claim_is_recorded_as_proved(name: str) -> None:
    known = recorded(name)
    assert known is not None, "run `make evidence`; where it needs a device, docs/prove.md says how"
    assert known.verdict == "proved"


def test_nothing_is_recorded_that_is_not_there() -> None:
    from fallline.proof.record import all_recorded

    assert all_recorded().keys() <= where().keys()


def test_the_files_say_which_experiments_there_are() -> None:
    assert set(where()) == {e.of for e in all_experiments()}


def test_rules_and_facts_have_experiments() -> None:
    assert len(RULES) >= 60
    assert len(FACTS) >= 45
    assert all(rule_by_code(code) is not None for code in RULES)
    assert set(FACTS) <= facts().keys()


def test_every_rule_that_a_run_can_break_has_one() -> None:
    assert {r.code for r in all_rules() if r.seen_by != "reader"} - set(RULES) == set()


def test_what_is_recorded_is_what_is_claimed_today() -> None:
    stale = [
        e.of
        for e in all_experiments()
        if (known := recorded(e.of)) is not None
        and (known.claim, known.taught, known.needs) != (e.claim, e.taught, e.needs)
    ]
    assert stale == [], "measure these again: `fallline prove NAME --out docs`"
