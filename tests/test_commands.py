"""Every `fallline ...` command line that playbooks, skills, documents and help texts show is one that the parsers take."""

from __future__ import annotations

import argparse
import re
import shlex
from collections.abc import Iterable, Iterator
from functools import cache
from importlib import import_module
from pathlib import Path

import pytest

from fallline.cli.commands import GROUPS, available
from fallline.cli.measure import available as verbs
from fallline.report.skills import rendered
from fallline.triage.playbook import playbooks

ROOT = Path(__file__).parent.parent
PAGES = [
    *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "AGENTS.md", "Makefile")),
    *sorted((ROOT / "docs").rglob("*.md")),
    *sorted((ROOT / "examples").rglob("*.md")),
]
# a command begins a line or a code span, or follows what starts it: a prompt, another command, torchrun, variables
_LINE = re.compile(
    r"^[ \t>$+@-]*(?:\S+=\S+ )*(?:(?:torchrun|python3?)\b.*? -m )?fallline (?=[a-z]).*$",
    re.MULTILINE,
)
_SPAN = re.compile(r"`((?:\$ )?(?:torchrun [^`]*-m )?fallline [a-z][^`\n]*)`")
_FENCE = re.compile(
    r"^( *)```(?:bash|sh|console|text|yaml|make|toml|json)?\n(.*?)^\1```", re.M | re.S
)
# what stands for something in running text
_PLACEHOLDER = re.compile(r"[A-Z]{2,}|\.\.\.|…")


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> None:  # type: ignore[override]
        raise ValueError(message)


@cache
def parser(command: str) -> argparse.ArgumentParser:
    made = _Parser(prog=f"fallline {command}", allow_abbrev=False)
    import_module(f"fallline.cli.{command}").add_arguments(made)
    return made


def commands(text: str) -> Iterator[tuple[str, bool]]:
    """The command lines of a text without blocks, such as a help text."""
    yield from ((m[0], False) for m in _LINE.finditer(text))


def shown(page: str) -> Iterator[tuple[str, bool]]:
    """The command lines of a page: those of its blocks, and those that its running text names."""
    for block in _FENCE.finditer(page):
        yield from commands(block[2])
    yield from ((m[1], True) for m in _SPAN.finditer(_FENCE.sub("", page)))


def words(line: str) -> list[str]:
    """What the shell would hand to `fallline`: no comment, redirection or next command."""
    line = line.partition("fallline ")[2]
    line = re.split(r"  +|\s[|<>;]|\s&&|\s#", line)[0]
    return shlex.split(line.rstrip("\\ "))


def problem(line: str, *, named: bool = False) -> str:
    """Why the parsers do not take a command line; empty where they do. In running text a command may be `named` without all it needs."""
    given = words(line)
    command, rest = given[0], given[1:]
    if command not in available():
        return f"there is no command {command!r}"
    if named and (not rest or _PLACEHOLDER.search(line)):
        return ""
    wrong = _refused(command, rest)
    return _refused(command, [*rest, "train.py"]) if named and wrong else wrong


def _refused(command: str, rest: list[str]) -> str:
    try:
        parser(command).parse_args(rest)
    except SystemExit:  # --help
        return ""
    except ValueError as error:
        return str(error)
    return ""


def problems(lines: Iterable[tuple[str, bool]]) -> list[str]:
    return [
        f"{line.strip()}: {wrong}" for line, named in lines if (wrong := problem(line, named=named))
    ]


def steps() -> list[tuple[str, bool]]:
    cases = [case for book in playbooks() for case in book.cases]
    return [c for case in cases for s in (*case.measure, *case.verify) for c in commands(s.run)]


def test_playbooks_name_commands_that_exist() -> None:
    assert len(steps()) > 50
    assert problems(steps()) == []


def test_every_instrument_is_what_some_playbook_measures_with() -> None:
    given = [words(line) for line, _ in steps()]
    assert {line[1] for line in given if line[0] == "measure"} == set(verbs())


@pytest.mark.parametrize("page", PAGES, ids=lambda p: str(p.relative_to(ROOT)))
def test_pages_name_commands_that_exist(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    assert problems(shown(text) if page.suffix == ".md" else commands(text)) == []


@pytest.mark.parametrize("name", rendered())
def test_skills_name_commands_that_exist(name: str) -> None:
    assert problems(shown(rendered()[name])) == []


@pytest.mark.parametrize("command", [c for _, rows in GROUPS for c, _ in rows if c in available()])
def test_help_names_commands_that_exist(command: str) -> None:
    helps = [import_module(f"fallline.cli.{command}").HELP]
    if command == "measure":
        helps += [import_module(f"fallline.cli.measuring.{verb}").HELP for verb in verbs()]
    assert problems(c for text in helps for c in commands(text)) == []


@pytest.mark.parametrize(
    "line",
    [
        "fallline chekc train.py",
        "fallline measure rank train.py",
        "fallline check --explian train.py",
        "fallline ask 'why' --run",
        "torchrun --nproc-per-node 2 -m fallline rnu train.py",
        "fallline measure precision --tables",
        "fallline eval --output-format xml",
    ],
)
def test_a_wrong_command_line_is_seen(line: str) -> None:
    ((found, named),) = commands(line)
    assert problem(found, named=named)
