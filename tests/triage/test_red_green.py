"""RED and GREEN of the sources, with a scripted agent: what popular advice says fails, what an expert says passes, and the report shows both."""

from __future__ import annotations

import json
import shlex
import sys
import tomllib
from pathlib import Path

import pytest

from fallline.cli.main import main
from fallline.triage.evaluate import Scenario, grade, grade_text, scenarios

ANSWERS = Path(__file__).parents[2] / "evals" / "answers.toml"
GIVEN = tomllib.loads(ANSWERS.read_text(encoding="utf-8"))
SOURCES = [s for s in scenarios() if s.source]

# without the skills it says what is popular, with them what is right; the question is the last thing it is given
AGENT = """
import json, sys

answers = json.loads(open(sys.argv[1]).read())
asked = sys.stdin.read()
colour = "green" if "measured first" in asked else "red"
print(next(a[colour] for question, a in answers.items() if asked.endswith(question)))
"""


def test_there_is_an_answer_of_each_colour_for_every_scenario_of_the_sources() -> None:
    assert GIVEN["green"].keys() == GIVEN["red"].keys() == {s.id for s in SOURCES}


@pytest.mark.parametrize("scenario", SOURCES, ids=lambda s: s.id)
def test_green_passes_and_red_fails(scenario: Scenario) -> None:
    assert [str(c) for c in grade(scenario, GIVEN["green"][scenario.id])] == []
    assert grade(scenario, GIVEN["red"][scenario.id])


def test_most_red_answers_are_refuted_and_not_only_incomplete() -> None:
    wrong = [
        s.id
        for s in SOURCES
        if {"refuted", "code"} & {c.kind for c in grade(s, GIVEN["red"][s.id])}
    ]
    # setting up DDP by wrapping the model alone is incomplete, and nothing in it is false
    assert set(GIVEN["red"]) - set(wrong) == {"ddp-on-eight-gpus"}


def test_the_report_shows_both_side_by_side(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    answers = {
        s.question: {c: GIVEN[c][s.id] for c in ("green", "red")}
        for s in SOURCES
        if s.id in {"clipping-scaled-gradients", "nan-after-epoch-three"}
    }
    (tmp_path / "answers.json").write_text(json.dumps(answers))
    (tmp_path / "agent.py").write_text(AGENT)
    assert main(["skills", str(tmp_path / "skills")]) == 0
    capsys.readouterr()
    agent = " ".join(
        shlex.quote(str(w))
        for w in (sys.executable, tmp_path / "agent.py", tmp_path / "answers.json")
    )
    both = ["eval", "--agent", agent, "--skills", str(tmp_path / "skills")]
    both += ["--only", "clipping-scaled-gradients", "--only", "nan-after-epoch-three"]
    assert main([*both, "--output-format", "markdown"]) == 0
    report = capsys.readouterr().out
    assert "| nan-after-epoch-three | 004, scenario 4 | fails | passes |" in report
    assert "- with skills: 2 of 2 scenarios pass." in report
    assert "without skills: 0 of 2 scenarios pass (" in report and "refuted statements" in report
    assert "[fact clipping-spreads-nan]" in report and "\nwith skills: passes.\n" in report
    assert "does not say “unscale_”" in report and "/" not in report.split("does not say")[1][:40]
    assert main(both) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split() == ["without", "skills", "with", "skills"]
    assert any(line.split() == ["nan-after-epoch-three", "FAIL", "pass"] for line in lines)


@pytest.mark.parametrize(
    ("statement", "complaints"),
    [
        ("A global clip does not affect the backbone.", 1),
        ("It is not true that a global clip does not affect the backbone.", 0),
        ("A global clip affects the backbone.", 0),
    ],
)
def test_a_claim_that_denies_something_is_seen(statement: str, complaints: int) -> None:
    (scenario,) = (s for s in SOURCES if s.id == "clipping-groups-apart")
    refuted = [c for c in grade(scenario, statement) if c.kind == "refuted"]
    assert len(refuted) == complaints


def test_a_denial_inside_a_claim_still_denies() -> None:
    assert grade_text("Clipping does not fix NaN.") == []
    assert len(grade_text("Clipping fixes NaN.")) == 1
