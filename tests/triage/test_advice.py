"""check_advice judges meaning: good answers in words that are not ours pass, fluent wrong ones are caught with what refutes them."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

import pytest
from tests.triage.test_claims import BEHAVIOURS

from fallline.rules import rule_by_code
from fallline.triage.claim import claims
from fallline.triage.evaluate import judge
from fallline.triage.opposite import propositions
from fallline.triage.playbook import facts
from fallline.triage.refuted import refuted

FILE = Path(__file__).parent / "questions" / "advice.toml"
ADVICE = tomllib.loads(FILE.read_text(encoding="utf-8"))["advice"]


@pytest.mark.parametrize("advice", [a for a in ADVICE if a["good"]], ids=lambda a: a["ask"])
def test_good_advice_passes(advice: dict[str, Any]) -> None:
    assert [str(c) for c in judge(advice["text"])] == []


@pytest.mark.parametrize("advice", [a for a in ADVICE if not a["good"]], ids=lambda a: a["ask"])
def test_bad_advice_is_caught(advice: dict[str, Any]) -> None:
    complaints = judge(advice["text"])
    assert complaints and all(c.backs for c in complaints)


def test_every_refuted_statement_has_its_evidence() -> None:
    assert len(refuted()) >= 150 and len({r.id for r in refuted()}) == len(refuted())
    for claim in refuted():
        assert claim.wrong and claim.so, claim.id
        kind, _, name = claim.fact.rpartition(":")
        known = (
            name in BEHAVIOURS
            if kind == "torch"
            else claim.fact in facts() or rule_by_code(claim.fact)
        )
        assert known, f"{claim.id} rests on {claim.fact}"


def test_our_own_answers_state_nothing_refuted() -> None:
    for claim in claims():
        text = " ".join([claim.says, *(f"{a.do} {a.see}" for a in claim.actions)])
        found = [str(c) for c in judge(text) if c.kind == "refuted"]
        assert found == [], claim.id


def test_every_proposition_has_its_evidence() -> None:
    for true in propositions():
        kind, _, name = true.backs.rpartition(":")
        known = (
            name in BEHAVIOURS
            if kind == "torch"
            else true.backs in facts() or rule_by_code(true.backs)
        )
        assert known and true.so, f"{true.of} {true.that} rests on {true.backs}"


@pytest.mark.parametrize(
    ("wrong", "right"),
    [
        ("Clip before the backward pass.", "Clip after the backward pass."),
        ("Adam and AdamW are interchangeable.", "Adam and AdamW are not interchangeable."),
        ("set_epoch is optional.", "set_epoch is not optional."),
        ("eval() disables autograd.", "eval() does not disable autograd."),
        ("Padding does not affect the loss.", "Padding affects the loss."),
        ("Use a GradScaler: bf16 needs loss scaling.", "bf16 does not need loss scaling."),
        ("After optimizer.step(), clip.", "Clip; otherwise you clip after optimizer.step()."),
        ("Checkpointing of activations is free. Activation checkpointing is faster.", "Activation checkpointing is not faster."),
    ],
)  # fmt: skip
def test_the_opposite_of_what_is_true_is_caught_and_its_denial_is_not(
    wrong: str, right: str
) -> None:
    assert judge(wrong) and not judge(right)
