"""Mistakes that one function shows to whoever reads it alone, though its objects come from somewhere out of sight."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from fallline.finding import Severity
from fallline.verdict.project import read_paths
from fallline.verdict.reading import read_text

sys.path.insert(0, str(Path(__file__).parent))
from alone import (
    EVALUATED_BY_A_METHOD,
    HANDED_OVER,
    KEPT_SAMPLER,
    MODE_OF_ITS_OWN,
    RESTS_INSIDE,
    SAVED_BY_SCRIPT,
    UNSEEN,
    UPDATED_NOWHERE,
)

CASES = {
    "FL804": RESTS_INSIDE,
    "FL303": KEPT_SAMPLER,
    "FL402": EVALUATED_BY_A_METHOD,
    "FL801": MODE_OF_ITS_OWN,
    "FL104": UNSEEN,
    "FL701": HANDED_OVER,
}


def lines(source: str, code: str) -> list[int]:
    return [f.at.line for f in read_text(source) if f.code == code]


def marked(source: str, code: str) -> list[int]:
    return [n for n, line in enumerate(source.splitlines(), 1) if line.endswith(f"# {code}")]


@pytest.mark.parametrize("code", CASES)
def test_the_wrong_one_is_found(code: str) -> None:
    wrong, _ = CASES[code]
    assert marked(wrong, code)
    assert lines(wrong, code) == marked(wrong, code)


@pytest.mark.parametrize("code", CASES)
def test_its_right_twin_is_silent(code: str) -> None:
    _, right = CASES[code]
    assert lines(right, code) == []


def test_a_loss_from_a_call_out_of_sight_is_a_note_that_says_what_it_presumes() -> None:
    (found,) = [f for f in read_text(UNSEEN[0]) if f.code == "FL104"]
    assert found.severity is Severity.INFO
    assert "`task.train_step` returns the mean loss" in found.message


def test_a_script_that_writes_what_a_model_says_is_an_evaluation() -> None:
    assert lines(SAVED_BY_SCRIPT, "FL402") == marked(SAVED_BY_SCRIPT, "FL402")
    assert lines(SAVED_BY_SCRIPT.replace("torch.randn(1)", "torch.no_grad()"), "FL402") == []


def codes(folder: Path) -> list[str]:
    paths = [str(p) for p in sorted(folder.glob("*.py"))]
    return [f.code for r in read_paths(paths, roots=[str(folder)]) for f in r.findings]


def test_a_sampler_that_stays_in_its_function_is_told_by_no_other_script(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(KEPT_SAMPLER[0])
    (tmp_path / "other.py").write_text("def run(sampler):\n    sampler.set_epoch(1)\n")
    assert "FL303" in codes(tmp_path)


def test_an_update_that_is_spelled_nowhere_is_called_by_nobody(tmp_path: Path) -> None:
    (tmp_path / "steps.py").write_text(UPDATED_NOWHERE)
    (tmp_path / "main.py").write_text("def after(scaler):\n    scaler.get_scale()\n")
    assert "FL204" in codes(tmp_path)
    (tmp_path / "main.py").write_text("def after(scaler):\n    scaler.update()\n")
    assert "FL204" not in codes(tmp_path)
