"""`fallline completion`, in the shells themselves."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

OFFERED = [
    ("fallline ch", ["check"]),
    ("fallline check --output-f", ["--output-format", "--output-file"]),
    ("fallline check --output-format s", ["sarif"]),
    ("fallline check . --select FL20", [f"FL20{n}" for n in range(1, 10)]),
    ("fallline rule clip-sc", ["clip-scaled"]),
    ("fallline completion z", ["zsh"]),
    ("fallline measure mem", ["memory"]),
    ("fallline measure memory --output-format j", ["json"]),
]
EACH = pytest.mark.parametrize(("line", "offered"), OFFERED, ids=[line for line, _ in OFFERED])


@pytest.fixture
def script(tmp_path: Path, fallline: Callable, request: pytest.FixtureRequest) -> Path:
    """The completion script of the shell that the test names."""
    shell = request.node.originalname.rpartition("_")[2]
    if shutil.which(shell) is None:
        pytest.skip(f"{shell} is not installed here")
    ran = fallline("completion", shell)
    assert ran.status == 0
    path = tmp_path / f"completion.{shell}"
    path.write_text(ran.out, encoding="utf-8")
    return path


def output(*command: str) -> list[str]:
    ran = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ran.returncode == 0 and not ran.stderr, ran.stderr
    return ran.stdout.split("\n")


@EACH
def test_in_bash(script: Path, line: str, offered: list[str]) -> None:
    ask = f"""
        source {script}
        COMP_WORDS=({line}); COMP_CWORD=$((${{#COMP_WORDS[@]}} - 1))
        _fallline
        printf '%s\\n' "${{COMPREPLY[@]}}"
    """
    assert output("bash", "--norc", "-c", ask)[:-1] == offered


@EACH
def test_in_fish(script: Path, line: str, offered: list[str]) -> None:
    rows = output("fish", "--no-config", "-c", f"source {script}; complete -C '{line}'")[:-1]
    assert sorted(row.split("\t")[0] for row in rows) == sorted(offered)


def test_in_zsh(script: Path) -> None:
    """zsh offers through its line editor: a terminal of its own gets a line and two tabulators."""
    ask = f"""
        zmodload zsh/zpty
        zpty shell zsh -f -i
        zpty -w shell 'PS1=; autoload -Uz compinit; compinit -u -D; source {script}; echo RE''ADY'
        zpty -r shell said '*READY*'
        zpty -w -n shell $'fallline check --output-format \\t\\t'
        seen=''
        repeat 1200; do
            sleep 0.1
            while zpty -r -t shell said; do seen+=$said; done
            [[ $seen == *sarif* ]] && break
        done
        print -r -- $seen
    """
    said = "\n".join(output("zsh", "-f", "-c", ask))
    assert all(word in said for word in ("concise", "full", "github", "json", "sarif"))
