"""The watcher says of every specimen what the reader says of its events (`tests/test_rules_contract.py`): the same code at the same line, and nothing of the right ones.

A rule may also look at the text, or at the numbers of a run: a run may be silent about specimens that only these show.
"""

from __future__ import annotations

import ast
import json
import re
import sys
import time
from pathlib import Path

import pytest

from fallline.reader.execute import traces_of
from fallline.rule import Rule
from fallline.rules import all_rules
from fallline.syntax import Project, Source

sys.path.insert(0, str(Path(__file__).parent))
from specimens import run_once, said_by_fallline

BOTH = [r for r in all_rules() if r._defines("check")]


def shown_by_events(rule: Rule, text: str) -> bool:
    """Whether the reader finds it in what the program does; a rule without other ways always does."""
    if not rule._defines("check_syntax"):
        return True
    module = Project().add(Source.from_bytes("specimen.py", text.encode()))
    traces = traces_of(module, time.thread_time() + 60)
    return any(True for trace in traces for _ in rule.check(trace))


WRONG = {f"{r.code}_wrong{i}": (r, text) for r in BOTH for i, text in enumerate(r.wrong)}
RIGHT = {f"{r.code}_right{i}": (r, text) for r in BOTH for i, text in enumerate(r.right)}
# About devices with a queue; a run on a CPU has none, and the watcher is right to be silent.
DEVICE_ONLY = frozenset({"FL501", "FL504"})


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    scripts = {name: text for name, (_, text) in (WRONG | RIGHT).items()}
    return run_once(tmp_path_factory, "specimens", scripts)


def expected(text: str) -> set[tuple[str, int]]:
    lines = enumerate(text.split("\n"), 1)
    return {(code, n) for n, line in lines for code in re.findall(r"#.*?\b(FL\d{3})\b", line)}


def runs_something(text: str) -> bool:
    """More than imports and definitions: a class that nobody calls cannot be watched."""
    defines = (ast.Import, ast.ImportFrom, ast.FunctionDef, ast.ClassDef)
    return not all(isinstance(statement, defines) for statement in ast.parse(text).body)


def watched(runs: Path, name: str, rule: Rule) -> set[tuple[str, int]]:
    path = runs / f"{name}.run" / "findings.json"
    found = json.loads(path.read_text()) if path.exists() else []
    return {
        (f["code"], f["line"]) for f in found if f["severity"] != "info" or f["code"] == rule.code
    }


@pytest.mark.parametrize("name", WRONG)
def test_the_watcher_finds_what_the_specimen_says(runs: Path, name: str) -> None:
    rule, text = WRONG[name]
    want = expected(text) if runs_something(text) and rule.code not in DEVICE_ONLY else set()
    found = watched(runs, name, rule)
    if found == set() != want and not shown_by_events(rule, text):
        return
    assert found == want, (runs / f"{name}.watched").read_text()


@pytest.mark.parametrize("name", RIGHT)
def test_the_watcher_is_silent_where_all_is_right(runs: Path, name: str) -> None:
    rule, _ = RIGHT[name]
    assert watched(runs, name, rule) == set(), (runs / f"{name}.watched").read_text()
    assert said_by_fallline((runs / f"{name}.watched").read_text()) == []
