"""An agent that follows a skill literally: it runs the steps in their order, with the tool and without it, and finds what the skill says it will find."""

from __future__ import annotations

import contextlib
import io
import json
import re
import shlex
import subprocess
import sys
import textwrap
from dataclasses import dataclass
from pathlib import Path

import pytest

from fallline.cli.commands import available
from fallline.cli.main import main
from fallline.report.skills import ROUTER, rendered
from fallline.rules import rule_by_code

FILES = rendered()
HOMES = sorted({name.partition("/")[0] for name in FILES})
SCRIPT = """\
import torch

torch.manual_seed(0)
model = torch.nn.Linear(4, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for i in range(8):
    loss = torch.nn.functional.cross_entropy(model(torch.randn(8, 4)), torch.randint(2, (8,)))
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    if (i + 1) % 4 == 0:
        optimizer.step()
        optimizer.zero_grad()
"""


@dataclass(frozen=True)
class Step:
    """One numbered step of a skill: what it says, and the commands under it."""

    number: int
    says: str
    commands: tuple[str, ...]


def steps_of(skill: str) -> list[Step]:
    """The steps under `In this order`, as an agent reads them."""
    section = re.split(r"(?m)^## ", FILES[f"{skill}/SKILL.md"].partition("## In this order")[2])[0]
    found = []
    for match in re.finditer(r"(?ms)^(\d+)\. (.*?)(?=^\d+\. |^\*\*|\Z)", section):
        fenced = re.findall(r"(?ms)^ *```bash\n(.*?)^ *```", match[2])
        commands = [line.strip() for block in fenced for line in block.splitlines() if line.strip()]
        commands += (
            re.findall(r"`(fallline [a-z]+ [^`]*train\.py[^`]*)`", match[2]) if not fenced else []
        )
        says = re.sub(r"(?ms)^ *```bash\n.*?^ *```", "", match[2])
        found.append(Step(int(match[1]), " ".join(says.split()), tuple(commands)))
    return found


def do(command: str) -> tuple[int, str]:
    """A command of the skill, run as it stands."""
    words = shlex.split(command)
    assert words[0] == "fallline" and words[1] in available(), command
    if words[1] == "run":  # a process of its own, as for the user
        ran = subprocess.run([sys.executable, "-m", *words], capture_output=True, text=True)
        return ran.returncode, ran.stdout + ran.stderr
    with contextlib.redirect_stdout(io.StringIO()) as out, contextlib.redirect_stderr(out):
        status = main(words[1:])
    return status, out.getvalue()


@pytest.mark.parametrize("skill", HOMES)
def test_the_steps_are_numbered_and_say_what_to_run(skill: str) -> None:
    steps = steps_of(skill)
    assert [s.number for s in steps] == list(range(1, len(steps) + 1)) and len(steps) >= 5
    first = [s.commands[0].split()[1] for s in steps if s.commands][:3]
    assert first == ["check", "run", "ask"], first


def test_all_skills_have_the_same_steps() -> None:
    """So following one of them follows them all."""
    wanted = steps_of(HOMES[1])
    assert all([s.commands for s in steps_of(home)] == [s.commands for s in wanted] for home in HOMES if home != ROUTER)  # fmt: skip


# a mistake of each specialist, whose script the agent of that skill is given; the reader finds it, so nothing starts torch
MISTAKES = {
    "fallline-checkpointing-and-reproducibility": "FL702",
    "fallline-custom-autograd-functions": "FL902",
    "fallline-debugging-techniques": "FL606",
    "fallline-distributed-training-strategies": "FL303",
    "fallline-fine-tuning": "FL019",
    "fallline-gradient-management": "FL101",
    "fallline-mixed-precision-and-optimization": "FL201",
    "fallline-module-design-patterns": "FL801",
    "fallline-performance-profiling": "FL503",
    "fallline-tensor-operations-and-memory": "FL401",
}


def test_every_skill_has_its_agent() -> None:
    assert {ROUTER, *MISTAKES} == set(HOMES)


@pytest.mark.parametrize("skill", MISTAKES)
def test_an_agent_of_each_skill(
    skill: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It does what its skill says, in that order, with a script that has a mistake of that specialist, and ends with the mistake gone or named."""
    monkeypatch.chdir(tmp_path)
    code = MISTAKES[skill]
    rule = rule_by_code(code)
    assert rule is not None
    Path("train.py").write_text(rule.wrong[0].replace(f"  # {code}", ""), encoding="utf-8")
    said = {}
    for step in steps_of(skill):
        for command in step.commands:
            if command.split()[1] != "run":  # a watched run: the router's agent does it
                said[command] = do(command.replace("--run fallline-runs/now ", ""))
    check = next(out for command, out in said.items() if command.startswith("fallline check"))
    assert check[0] == 1 and code in check[1]
    status, text = do(f"fallline rule {code}")
    assert status == 0 and rule.name in text
    asked = next(out for command, out in said.items() if command.startswith("fallline ask"))
    assert asked[0] == 0 and re.search(r"FL\d{3}", asked[1])
    assert len(re.findall(r"(?m)^\d\. ", asked[1])) <= 3
    do("fallline check train.py --fix")
    left = do("fallline check train.py")[1]
    assert code not in left or not rule.fix_safety


@pytest.mark.parametrize("skill", [ROUTER, "fallline-gradient-management"])
def test_with_the_tool(skill: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("train.py").write_text(SCRIPT, encoding="utf-8")
    said: dict[str, tuple[int, str]] = {}
    for step in steps_of(skill):
        for command in step.commands:
            verb = command.split()[1]
            if verb == "run" and skill != ROUTER:
                continue  # one watched run is enough
            if verb == "ask" and skill != ROUTER:
                command = command.replace("--run fallline-runs/now ", "")
            said[command] = do(command)
    check = next(out for command, out in said.items() if command.startswith("fallline check"))
    # step 1: exit status 1 means findings, and each has a code that `fallline rule` explains
    assert check[0] == 1
    codes = set(re.findall(r"\bFL\d{3}\b", check[1]))
    assert codes
    for code in sorted(codes)[:2]:
        status, text = do(f"fallline rule {code}")
        assert status == 0 and code in text
    # step 3: a few sentences, at most three actions
    asked = next(out for command, out in said.items() if command.startswith("fallline ask"))
    assert asked[0] == 0 and len(re.findall(r"(?m)^\d\. ", asked[1])) <= 3
    if skill == ROUTER:
        ran = next(out for command, out in said.items() if command.startswith("fallline run"))
        assert ran[0] == 0
        assert json.loads(Path("fallline-runs/now/findings.json").read_text())
    # step 5 and 6: the fix is shown, applied, and the finding is gone
    before = Path("train.py").read_text(encoding="utf-8")
    assert do("fallline check train.py --diff")[0] in (0, 1)
    assert Path("train.py").read_text(encoding="utf-8") == before
    do("fallline check train.py --fix")
    again = set(re.findall(r"\bFL\d{3}\b", do("fallline check train.py")[1]))
    assert again < codes


@pytest.mark.parametrize("skill", HOMES)
def test_without_the_tool(skill: str) -> None:
    """The references are enough: the case is found in the table, its page is there, and its plain Python parses."""
    text = FILES[f"{skill}/SKILL.md"]
    without = text.partition("**Without it**")[2].partition("\n\n")[0]
    assert "do not install a package" in without and not re.search(r"pip install|uvx|pipx", text)
    if skill == ROUTER:
        return
    pages = re.findall(r"\(references/([\w-]+)\.md\)", text)
    assert pages
    for page in pages:
        body = FILES[f"{skill}/references/{page}.md"]
        for block in re.findall(r"(?ms)^ *```python\n(.*?)^ *```", body):
            source = textwrap.dedent(block)
            compile(
                f"def f():\n{textwrap.indent(source, '    ')}" if "return " in source and "def " not in source else source,
                page,
                "exec",
            )  # fmt: skip


@pytest.mark.parametrize("skill", HOMES)
def test_pressure_is_resisted_in_every_skill(skill: str) -> None:
    text = FILES[f"{skill}/SKILL.md"]
    pressure = text.partition("## Under pressure")[2].partition("\n## ")[0]
    assert len(re.findall(r"(?m)^- ", pressure)) >= 3
    instead = text.partition("## Say this instead")[2].partition("\n## ")[0]
    assert re.search(r"(?m)^- ", instead)
