"""`fallline eval`: ask passes every scenario; bad advice is caught with the fact that refutes it; agents are graded."""

from __future__ import annotations

import json
import re
import shlex
import sys
from pathlib import Path

import pytest

from fallline.cli.main import main
from fallline.cli.work.contestants import columns
from fallline.rules import rule_by_code
from fallline.specialists import SPECIALISTS
from fallline.triage.evaluate import Scenario, grade, grade_text, refuted, scenarios
from fallline.triage.playbook import facts

ALL = scenarios()


@pytest.mark.parametrize("scenario", ALL, ids=lambda s: s.id)
def test_ask_passes(scenario: Scenario) -> None:
    (ask,) = columns([scenario], None, None, 1.0)
    assert ask.complaints[scenario.id] == []


def test_the_scenarios_cover_the_sources_and_more() -> None:
    sources = [s.source[:3] for s in ALL if s.source]
    assert [sources.count(n) for n in ("001", "002", "004")] == [10, 3, 5]
    assert len(ALL) - len(sources) >= 60
    assert len({s.id for s in ALL}) == len(ALL)
    assert {s.routes[0] for s in ALL if s.routes} == {s.name for s in SPECIALISTS}


@pytest.mark.parametrize("scenario", ALL, ids=lambda s: s.id)
def test_every_rubric_is_backed(scenario: Scenario) -> None:
    assert scenario.must_say or not scenario.routes
    assert all(rule_by_code(code) is not None for code in scenario.shows)
    for claim in scenario.must_not_say:
        assert claim.fact in facts()
        re.compile(claim.says)
    for pattern in (*scenario.must_say, *(p for pair in scenario.order for p in pair)):
        re.compile(pattern)


def test_the_page_shows_every_scenario() -> None:
    page = (Path(__file__).parents[2] / "docs" / "ask.md").read_text(encoding="utf-8")
    table = page.partition("<!-- scenarios -->")[2]
    assert re.findall(r"^\| ([a-z0-9-]+) \| [^|]+ \| [^|]+ \|$", table, re.M)[1:] == [
        s.id for s in ALL
    ]


def test_every_refuted_statement_names_a_fact() -> None:
    assert all(claim.fact in facts() for claim in refuted())


@pytest.mark.parametrize(
    ("statement", "fact"),
    [
        ("Note that log(x + 1e-8) is numerically stable.", "log-plus-epsilon"),
        ("Gradient clipping fixes NaN losses in most models.", "clipping-spreads-nan"),
        ("If you see NaN, add gradient clipping with max_norm=1.0.", "clipping-spreads-nan"),
        ("Wrap only the backward call in model.no_sync().", "no-sync-needs-the-forward"),
        ("Calling unscale_ twice makes the gradients too small.", "unscale-twice-raises"),
        ("With BF16 the dimensions should be multiples of 16.", "tensor-core-alignment"),
        ("The exp function overflows above 88 in FP16.", "fp16-exp-limit"),
        ("Every transformer paper uses gradient clipping.", "not-every-paper-clips"),
        (
            "A gradient norm above 100 means the gradients are exploding.",
            "no-absolute-norms",
        ),
        ("Clipping overhead is always less than 1%.", "clip-cost-against-tokens"),
        ("BatchNorm prevents vanishing gradients in deep nets.", "batchnorm-alone-explodes"),
        ("Clipping works with any optimizer.", "lbfgs-recomputes"),
    ],
)
def test_false_statements_are_refuted_and_their_denial_is_not(statement: str, fact: str) -> None:
    assert [c.backs for c in grade_text(statement)] == [f"fact {fact}"]
    assert grade_text(f"It is not true that {statement[0].lower()}{statement[1:]}") == []
    assert grade_text(f"## Avoid\n\n- {statement}\n") == []


def test_code_in_an_answer_is_read() -> None:
    bad = "Try this:\n\n```python\nfor x, y in loader:\n    optimizer.zero_grad()\n    loss = loss_fn(model(x), y)\n"
    bad += "    loss.backward()\n    optimizer.step()\n    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)\n```\n"
    (complaint,) = grade_text(bad)
    assert complaint.backs == "FL101"
    assert "line 6 of a block" in complaint.text and "the step at line 5" in complaint.text
    assert grade_text(bad.replace("Try this:", "This is wrong:")) == []
    assert [c.backs for c in grade_text("```python\nfor x in\n```\n")] == ["FL000"]
    assert grade_text("```\nfor x in\n```\n") == []


def test_order_and_what_must_be_said() -> None:
    scenario = Scenario(
        "s", "", "?", ("debugging-techniques",), (), ("isfinite",), (), (("measure", "clip"),)
    )
    assert grade(scenario, "First measure with isfinite, then clip.") == []
    assert len(grade(scenario, "You could clip. Then measure.")) == 2


def test_one_answer_from_a_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    reply = tmp_path / "reply.md"
    reply.write_text("Use torch.log(p + 1e-8): log(p + 1e-8) is stable.\n")
    assert main(["eval", "--answer", str(reply)]) == 1
    assert "log-plus-epsilon" in capsys.readouterr().out
    reply.write_text("Use cross_entropy on the logits.\n")
    assert main(["eval", "--answer", str(reply)]) == 0


AGENT = """
import sys

question = sys.stdin.read()
if "ROUTER" in question:
    print("Measure the share of updates that are clipped, then take the threshold from a quantile; mind the learning rate.")
else:
    print("Gradient clipping fixes NaN. Every transformer paper uses gradient clipping.")
"""


def test_an_agent_with_and_without_the_skills(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "agent.py").write_text(AGENT)
    router = tmp_path / "skills" / "fallline" / "SKILL.md"
    router.parent.mkdir(parents=True)
    router.write_text("ROUTER\n")
    command = f"{shlex.quote(sys.executable)} {shlex.quote(str(tmp_path / 'agent.py'))}"
    common = ["eval", "--agent", command, "--only", "conflicting-advice"]
    assert main(common) == 1
    out = capsys.readouterr().out
    assert "clipping-spreads-nan" in out and "0 of 1 scenarios pass" in out
    both = [*common, "--skills", str(router.parent.parent)]
    assert main([*both, "--output-format", "markdown"]) == 0
    out = capsys.readouterr().out
    assert "without skills: 0 of 1" in out and "with skills: 1 of 1" in out
    assert main([*both, "--output-format", "json"]) == 0
    (row,) = json.loads(capsys.readouterr().out)
    assert row["without skills"] and row["with skills"] == []


@pytest.mark.parametrize(
    ("command", "words"),
    [
        ("exit 3", "status 3"),
        ("true", "empty"),
        ("sleep 30 & wait", "within 0.3 seconds"),
    ],
)
def test_an_agent_that_fails_is_a_failed_scenario(
    command: str, words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    only = ["--only", "conflicting-advice", "--timeout", "0.3"]
    assert main(["eval", "--agent", command, *only]) == 1
    assert words in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--answer", "nowhere.md"], "cannot be read"),
        (["--answer", "x.md", "--agent", "cat"], "leave out"),
        (["--skills", "x"], "give --agent"),
        (["--only", "nope"], "no scenario nope"),
        (["--scenarios", "nowhere"], "there are no scenarios"),
        (["--agent", "cat", "--skills", "nowhere"], "has no router skill"),
        (["--agent", "cat", "--timeout", "0"], "--timeout"),
    ],
)
def test_bad_input_is_told_in_one_line(
    arguments: list[str], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["eval", *arguments]) == 2
    printed = capsys.readouterr()
    assert words in printed.err and "Traceback" not in printed.err and not printed.out


@pytest.mark.parametrize("content", [b"", b"a\0b", b"a" * 1_000_001], ids=["empty", "nul", "huge"])
def test_what_is_no_answer(
    content: bytes, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "reply.md").write_bytes(content)
    assert main(["eval", "--answer", str(tmp_path / "reply.md")]) == 2
    assert capsys.readouterr().out == ""
