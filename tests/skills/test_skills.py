"""The skills: valid for the official validator, short, made of true code and real commands, and written with care."""

from __future__ import annotations

import ast
import json
import re
import shlex
import subprocess
import sys
import textwrap
import tomllib
from argparse import ArgumentParser
from collections.abc import Callable
from importlib import import_module
from pathlib import Path

import pytest

from fallline.cli.commands import GROUPS, available
from fallline.docs.__main__ import SKILLS
from fallline.report.skills import LONGEST_DESCRIPTION, ROUTER, rendered, skill_name, write
from fallline.rules import all_rules
from fallline.specialists import SPECIALISTS
from fallline.triage.playbook import playbooks
from fallline.triage.shape import Shape
from fallline.verdict.reading import read_text

FILES = rendered()
HOMES = sorted({name.partition("/")[0] for name in FILES})
ROOT = Path(__file__).parent.parent.parent
VALIDATOR = Path(sys.executable).with_name("agentskills")


def blocks(language: str) -> list[object]:
    """Every fenced block of a language, out of its list item."""
    return [
        pytest.param(textwrap.dedent(match[1]), id=f"{name}-{number}")
        for name, text in FILES.items()
        for number, match in enumerate(
            re.finditer(rf"^ *```{language}\n(.*?)^ *```", text, re.MULTILINE | re.DOTALL)
        )
    ]


def test_a_router_and_ten_specialists() -> None:
    assert set(HOMES) == {ROUTER, *(skill_name(s.name) for s in SPECIALISTS)} and len(HOMES) == 11


def test_the_official_validator_accepts_each(tmp_path: Path) -> None:
    for home in write(tmp_path):
        ran = subprocess.run([VALIDATOR, "validate", home], capture_output=True, text=True)
        assert ran.returncode == 0, ran.stdout + ran.stderr


@pytest.mark.parametrize("home", HOMES)
def test_a_skill_is_short_and_says_when(home: str) -> None:
    text = FILES[f"{home}/SKILL.md"]
    assert len(text.splitlines()) < 500
    assert len(text) / 4 < 5000  # about the tokens that a body should stay below
    found = re.search(r'^description: "(.*)"$', text, re.MULTILINE)
    assert found is not None and len(found[1]) <= LONGEST_DESCRIPTION and "Use when" in found[1]


@pytest.mark.parametrize("home", HOMES)
def test_a_skill_measures_before_it_prescribes(home: str) -> None:
    text = FILES[f"{home}/SKILL.md"]
    places = [
        text.index(words)
        for words in (
            "Leave alone what works",
            "fallline check",
            "fallline run",
            "fallline ask",
            "Prescribe only",
            "Verify",
        )
    ]
    assert places == sorted(places)


@pytest.mark.parametrize("name", FILES)
def test_links_lead_to_references_one_level_down(name: str) -> None:
    for target in re.findall(r"\]\(([^)]+)\)", FILES[name]):
        if name.endswith("SKILL.md"):
            assert f"{name.partition('/')[0]}/{target}" in FILES, target
            assert re.fullmatch(r"references/[\w-]+\.md", target)


def test_every_case_and_every_rule_is_in_a_reference() -> None:
    for book in playbooks():
        home = skill_name(book.specialist)
        body = FILES[f"{home}/SKILL.md"]
        for case in book.cases:
            assert f"references/{case.id}.md" in body
            page = FILES[f"{home}/references/{case.id}.md"]
            assert all(fix.title in page and fix.when in page for fix in case.fix)
            assert all(avoid.because in body for avoid in case.avoid)
    listed = "\n".join(text for name, text in FILES.items() if name.endswith("rules.md"))
    assert all(f"## {rule.code} {rule.name}\n" in listed for rule in all_rules())


@pytest.mark.parametrize("code", blocks("python"))
def test_code_is_right(code: str) -> None:
    inside = "return " in code and "def " not in code
    whole = "def f():\n" + textwrap.indent(code, "    ") if inside else code
    ast.parse(whole)
    assert [f for f in read_text("import torch\n" + whole) if f.severity != "info"] == []


@pytest.mark.parametrize("text", blocks("bash"))
def test_commands_exist(text: str) -> None:
    for line in text.splitlines():
        words = shlex.split(line)
        assert words[0] == "fallline" and words[1] in available(), line
        parser = ArgumentParser(exit_on_error=False)
        import_module(f"fallline.cli.{words[1]}").add_arguments(parser)
        parser.parse_args(words[2:])


def test_commands_in_running_text_exist() -> None:
    named = {m for text in FILES.values() for m in re.findall(r"`fallline ([a-z]+)", text)}
    commands = {name for _, rows in GROUPS for name, _ in rows}
    assert named <= commands and {"check", "run", "ask", "rule"} <= named


def test_runnable_code_runs(tmp_path: Path) -> None:
    given = {p.id: p.values[0] for p in blocks("python")}  # type: ignore[attr-defined]
    ran = subprocess.run(
        [sys.executable, Path(__file__).with_name("run_blocks.py")],
        input=json.dumps(given),
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )
    assert ran.returncode == 0, ran.stderr
    found = json.loads(ran.stdout)
    assert found["failed"] == {} and len(found["ran"]) > len(given) / 2


# -- written ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("home", [SKILLS])
def test_what_is_shipped_is_what_would_be_written(home: Path) -> None:
    shipped = {
        p.relative_to(ROOT / home).as_posix(): p.read_text(encoding="utf-8")
        for p in (ROOT / home).rglob("*")
        if p.is_file()
    }
    assert shipped == FILES, "run `make docs`"


def test_the_wheel_carries_them() -> None:
    wheel = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["hatch"]
    included = wheel["build"]["targets"]["wheel"]["force-include"]
    assert included[str(SKILLS)] == "fallline/.agents/skills"


def test_skills_are_written_and_brought_up_to_date(
    tmp_path: Path, fallline: Callable[..., object]
) -> None:
    first = fallline("skills", tmp_path / "new" / "skills")
    assert first.status == 0 and "Wrote 11 skills" in first.out  # type: ignore[attr-defined]
    page = tmp_path / "new" / "skills" / ROUTER / "SKILL.md"
    old = tmp_path / "new" / "skills" / HOMES[1] / "references" / "gone.md"
    page.write_text(page.read_text() + "an older version")
    old.write_text("a case that is no more")
    assert fallline("skills", tmp_path / "new" / "skills").status == 0  # type: ignore[attr-defined]
    assert page.read_text() == FILES[f"{ROUTER}/SKILL.md"] and not old.exists()


def test_somebody_elses_skill_is_not_replaced(
    tmp_path: Path, fallline: Callable[..., object]
) -> None:
    theirs = tmp_path / ROUTER / "SKILL.md"
    theirs.parent.mkdir()
    theirs.write_text("---\nname: fallline\n---\nmine")
    ran = fallline("skills", tmp_path)
    assert ran.status == 2 and "was not written by fallline" in ran.err  # type: ignore[attr-defined]
    assert theirs.read_text().endswith("mine") and len(list(tmp_path.iterdir())) == 1


def test_a_folder_that_is_a_file(tmp_path: Path, fallline: Callable[..., object]) -> None:
    (tmp_path / "file").write_text("x")
    ran = fallline("skills", tmp_path / "file")
    assert ran.status == 2 and "cannot be written" in ran.err  # type: ignore[attr-defined]
    assert "Traceback" not in ran.err  # type: ignore[attr-defined]


def test_a_no_answers_a_question_that_wants_one() -> None:
    """`where do I add clip_grad_norm_? No.` is not an answer."""
    said = [line for text in FILES.values() for line in re.findall(r"^- .+\? No\. .+$", text, re.M)]
    assert len(said) > 30
    for line in said:
        asked, _, reason = line[2:].partition("? No. ")
        assert Shape.of(f"{asked}?").decides, line
        assert not re.match(r"(?:yes|no)\b[:,]", reason, re.IGNORECASE) and reason[0] != " ", line
