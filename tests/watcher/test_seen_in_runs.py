"""Mistakes that a run shows besides its events: shapes and targets in the loss's graph, states that are cast, statistics that move.

The rules' own specimens, and scripts in which only the run knows: sizes that come from data, names that come from a model.
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

import pytest

from fallline.rules import all_rules, rule_by_code
from fallline.runs.series import Rank, Series

sys.path.insert(0, str(Path(__file__).parent))
from seen_in_runs import SCRIPTS
from specimens import run_once

# code → which of its wrong specimens run with torch alone
_SPECIMENS = {
    "FL131": (0, 2),
    "FL135": (0,),
    "FL136": (0, 1),
    "FL139": (0,),
    "FL216": (0,),
    "FL606": (0,),
    "FL612": (0, 3),
}
_PLANTED = Path(__file__).parents[1] / "tuning" / "planted"  # for `fallline measure data`
NEW = {
    *("FL025", "FL126", "FL130", "FL131", "FL135", "FL136", "FL139", "FL140", "FL216"),
    *("FL407", "FL606", "FL609", "FL612", "FL708", "FL810", "FL811", "FL812"),
}


def _scripts() -> dict[str, str]:
    found = dict(SCRIPTS)
    for code, numbers in _SPECIMENS.items():
        rule = rule_by_code(code)
        assert rule is not None
        found |= {f"{code}_{n}": rule.wrong[n] for n in numbers}
    return found


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return run_once(tmp_path_factory, "seen_in_runs", _scripts())


def _line_of_loss(code: str, text: str) -> set[int]:
    """A run reports at the backward or the step what the reader reports at the line that is wrong."""
    lines = list(enumerate(text.split("\n"), 1))
    marked = {n for n, line in lines if re.search(rf"#.*\b{code}\b", line)}
    return marked | {n for n, line in lines if ".backward(" in line or ".step()" in line}


@pytest.mark.parametrize("name", [n for n in _scripts() if not n.startswith("right")])
def test_a_run_shows_it(runs: Path, name: str) -> None:
    text = _scripts()[name]
    (code,) = set(re.findall(r"#.*?\b(FL\d{3})\b", text))
    found = json.loads((runs / f"{name}.run" / "findings.json").read_text())
    lines = {f["line"] for f in found if f["code"] == code}
    said = (runs / f"{name}.watched").read_text()
    assert len(lines) == 1 and lines <= _line_of_loss(code, text), said
    assert {f["code"] for f in found if f["code"] in NEW} == {code}, said


@pytest.mark.parametrize(("second", "codes"), [(7, ["FL029"]), (8, [])])
def test_ranks_whose_loaders_start_from_one_seed(second: int, codes: list[str]) -> None:
    """Each rank writes its seed down; whoever reads the folder compares them."""
    rule = rule_by_code("FL029")
    assert rule is not None
    place = {"path": "train.py", "line": 3, "function": "main"}
    ranks = [
        Rank(n, {"world": 2, "loader seeds": [place | {"seed": seed}]})
        for n, seed in enumerate((7, second))
    ]
    assert [f.code for f in rule.check_series(Series(ranks=ranks))] == codes


@pytest.mark.parametrize("name", ["right", "right too"])
def test_what_is_right_is_left_alone(runs: Path, name: str) -> None:
    found = json.loads((runs / f"{name}.run" / "findings.json").read_text())
    assert {f["code"] for f in found} & NEW == set(), (runs / f"{name}.watched").read_text()


def test_whatever_the_reader_and_a_run_see_is_shown_by_a_run() -> None:
    """Their own wrong scripts are for the reader, so test_detectors.py leaves them out."""
    both = {
        r.code for r in all_rules() if r._defines("check_series") and r._defines("check_syntax")
    }
    marked = {c for text in _scripts().values() for c in re.findall(r"#.*?\b(FL\d{3})\b", text)}
    planted = {path.read_text()[2:7] for path in _PLANTED.glob("*.py")}
    assert both - marked - planted == {"FL029"}, "FL029 needs several ranks and has a test here"
