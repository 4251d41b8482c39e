"""Streams that are closed, full, or cannot hold every character: the command says so, or writes plainly."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from fallline.rules import rule_by_code

CLOSED = {"stdout": ">&-", "stderr": "2>&-", "both": ">&- 2>&-"}
TRAINS = """
import torch

model = torch.nn.Linear(2, 1)
optimizer = torch.optim.SGD(model.parameters(), 0.1)
for _ in range(3):
    optimizer.zero_grad()
    model(torch.ones(4, 2)).pow(2).mean().backward()
    optimizer.step()
print("done")
"""


def shell(command: str, cwd: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    """The command as a shell runs it; `fallline` is this one."""
    ran = subprocess.run(
        command.replace("fallline", f"{sys.executable} -m fallline", 1),
        shell=True,
        capture_output=True,
        text=True,
        encoding="utf-8",
        cwd=cwd,
        env={**os.environ, **variables},
        check=False,
    )
    for said in (ran.stdout, ran.stderr):
        assert "Traceback" not in said and "mistake in fallline" not in said
        assert "Exception ignored" not in said
    return ran


@pytest.fixture
def wrong(project: Path) -> Path:
    rule = rule_by_code("FL201")
    assert rule is not None
    (project / "train.py").write_text(rule.wrong[0])
    return project


@pytest.mark.parametrize("which", CLOSED)
@pytest.mark.parametrize(
    ("command", "status"), [("check train.py", 1), ("rule FL201", 0), ("ask 'my loss is NaN'", 0)]
)
def test_a_closed_stream(which: str, command: str, status: int, wrong: Path) -> None:
    assert shell(f"fallline {command} {CLOSED[which]}", wrong).returncode == status


@pytest.mark.parametrize("which", CLOSED)
def test_a_run_with_a_closed_stream_is_recorded(which: str, project: Path) -> None:
    (project / "train.py").write_text(TRAINS)
    ran = shell(f"fallline run --out run train.py {CLOSED[which]}", project)
    assert ran.returncode == 0
    assert (project / "run" / "findings.json").read_text() == "[]\n"
    if which == "stderr":
        assert ran.stdout == "done\n"  # not a word of ours on the script's own output


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs /dev/full")
@pytest.mark.parametrize("command", ["check train.py", "rule FL201", "--version", "check --help"])
def test_a_full_disk_is_said(command: str, wrong: Path) -> None:
    ran = shell(f"fallline {command} > /dev/full", wrong)
    if command.endswith("--help"):
        return  # argparse keeps this to itself
    assert ran.returncode == 2
    assert ran.stderr == "fallline: the output cannot be written: No space left on device\n"


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs /dev/full")
def test_a_run_keeps_its_status_where_nobody_can_be_told(project: Path) -> None:
    (project / "train.py").write_text(TRAINS)
    ran = shell("fallline run --out run train.py 2> /dev/full", project)
    assert (ran.returncode, ran.stdout) == (0, "done\n")


# the commands in one process: what it writes to has the encoding, whoever writes; `check` and `ask` leave at once, so one of them is the last
TOLD = """
import sys
from fallline.cli.main import entry

for command in ("rule FL201", "rule FL605", sys.argv[1]):
    sys.argv = ["fallline", *command.split()]
    try:
        entry()
    except SystemExit as ended:
        print("told", ended.code, command)
"""


@pytest.mark.parametrize(
    ("last", "status", "ends"),
    [
        ("ask my loss is NaN --more", 0, "To check"),
        ("check train.py --explain", 1, "Found 1 error"),
    ],
)
@pytest.mark.parametrize("encoding", ["ascii", "cp1252"])
def test_an_encoding_that_cannot_hold_it(
    encoding: str, last: str, status: int, ends: str, wrong: Path
) -> None:
    ran = subprocess.run(
        [sys.executable, "-c", TOLD, last],
        capture_output=True,
        cwd=wrong,
        env={**os.environ, "PYTHONIOENCODING": encoding},
        check=False,
    )
    assert ran.returncode == status, ran.stderr
    said = ran.stdout.decode(encoding)
    assert said.count("told 0") == 2 and ends in said
    assert "\\u" not in said and "\\x" not in said


def test_plain_characters_stand_for_those_that_are_missing(wrong: Path) -> None:
    said = shell("fallline check train.py --explain", wrong, PYTHONIOENCODING="ascii").stdout
    assert "<- here" in said


def test_a_character_of_the_users_is_escaped(project: Path) -> None:
    (project / "Ω.py").write_text("x = (\n")
    ran = shell("fallline check . --output-format concise", project, PYTHONIOENCODING="ascii")
    assert ran.stdout.startswith("\\u03a9.py:1:5: FL000")
