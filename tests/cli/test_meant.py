"""`fallline` typed wrongly, by somebody in a hurry: the message names the right command line."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

MEANT = {
    "chek .": "fallline check .", "chekc": "fallline check", "Check .": "fallline check .", "CHECK": "fallline check",
    "--check .": "fallline check .", "lint .": "fallline check .", "scan train.py": "fallline check train.py",
    "analyze": "fallline check", "analyse .": "fallline check .", "review train.py": "fallline check train.py",
    "verify": "fallline check", "fix .": "fallline check --fix .", "repair": "fallline check --fix",
    "--fix": "fallline check . --fix", "--fix .": "fallline check --fix .", "--diff train.py": "fallline check --diff train.py",
    "train.py": "fallline check train.py", ".": "fallline check .", "nb.ipynb": "fallline check nb.ipynb",
    "train.py --lr 1": "fallline run train.py --lr 1", "rnu train.py": "fallline run train.py", "Run train.py": "fallline run train.py",
    "watch train.py": "fallline run train.py", "train train.py": "fallline run train.py", "exec train.py": "fallline run train.py",
    "launch": "fallline run", "start train.py": "fallline run train.py", "monitor": "fallline run", "debug train.py": "fallline run train.py",
    "aks nan": "fallline ask nan", "why nan": "fallline ask nan", "question": "fallline ask", "diagnose": "fallline ask",
    "profile train.py": "fallline measure train.py", "bench": "fallline measure", "mesure": "fallline measure",
    "memory": "fallline measure", "show runs": "fallline report runs", "html": "fallline report", "reprot": "fallline report",
    "explain FL201": "fallline rule FL201", "rules": "fallline rule", "FL201": "fallline rule FL201", "fl201": "fallline rule FL201",
    "docs": "fallline rule", "proof FL104": "fallline prove FL104", "experiment": "fallline prove", "example": "fallline demo",
    "dmeo": "fallline demo", "tutorial": "fallline demo", "init": "fallline demo", "server": "fallline lsp", "agent": "fallline mcp",
    "skill": "fallline skills", "evaluate": "fallline eval", "completions": "fallline completion", "version": "fallline --version",
    "-v": "fallline --version",
}  # fmt: skip


@pytest.mark.parametrize(("typed", "right"), MEANT.items(), ids=MEANT)
def test_the_message_names_the_right_command(
    project: Path, fallline: Callable, typed: str, right: str
) -> None:
    (project / "train.py").write_text("")
    (project / "nb.ipynb").write_text("{}")
    ran = fallline(*typed.split())
    assert ran.status == 2 and not ran.out
    assert f"Did you mean `{right}`?" in ran.err and len(ran.err.splitlines()) == 1


def test_a_question_and_a_run_folder(project: Path, fallline: Callable) -> None:
    assert "fallline ask" in fallline("why is my loss NaN?").err
    (project / "r").mkdir()
    (project / "r/rank0.sqlite").write_bytes(b"")
    assert "`fallline report r`" in fallline("r").err


def test_what_nobody_can_guess_and_what_is_hostile(fallline: Callable) -> None:
    assert "Did you mean" not in fallline("xyzzy").err
    ran = fallline("\x1b[2J\x07")
    assert "\x1b" not in ran.err and "\\x1b[2J" in ran.err
