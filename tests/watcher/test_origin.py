"""Every planted fault is found at its line, with its operation, module and update; and nothing else is blamed."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parent))
from planted_faults import FAULTS
from specimens import run_once


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    scripts = {name: fault.script for name, fault in FAULTS.items()}
    return run_once(tmp_path_factory, "faults", scripts)


def birth(runs: Path, name: str) -> dict[str, Any]:
    found = json.loads((runs / f"{name}.run" / "findings.json").read_text())
    births = [f for f in found if f["code"] in ("FL620", "FL621", "FL622", "FL623")]
    assert len(births) == 1, births
    return births[0]


@pytest.mark.parametrize("name", FAULTS)
def test_the_birth_of_the_nan_is_named(runs: Path, name: str) -> None:
    fault, found = FAULTS[name], birth(runs, name)
    evidence = found["evidence"]
    assert found["code"] == fault.code
    assert fault.op is None or evidence["op"] in fault.op
    assert fault.module is None or evidence["module"] in fault.module
    assert evidence["step"] == fault.step
    assert fault.line is None or found["line"] == fault.line


@pytest.mark.parametrize("name", FAULTS)
def test_the_script_went_on_as_if_nobody_watched(runs: Path, name: str) -> None:
    # the scripts assert their own side effects: counters, histories, BatchNorm's statistics, finite parameters
    assert (runs / f"{name}.watched-status").read_text() == str(FAULTS[name].status), (
        runs / f"{name}.watched"
    ).read_text()
    assert "fallline: the watcher failed" not in (runs / f"{name}.watched").read_text()


def test_a_bad_input_is_named_with_its_index(runs: Path) -> None:
    evidence = birth(runs, "nan_input")["evidence"]
    assert evidence["index"] == [1, 2]
    assert evidence["tensor"] == "x"


def test_the_index_is_that_of_the_tensor_that_is_named(runs: Path) -> None:
    evidence = birth(runs, "nan_input_slice")["evidence"]
    assert (evidence["tensor"], evidence["index"]) == ("xb", [3, 2])


def test_the_learning_rate_that_exploded_is_named(runs: Path) -> None:
    assert birth(runs, "lr_explosion")["evidence"]["learning_rate"] == {
        "update": 4,
        "from": 0.1,
        "to": 1e20,
    }


def test_clipping_that_spreads_a_nan_is_told_beside_its_birth(runs: Path) -> None:
    found = json.loads((runs / "clip_spread.run" / "findings.json").read_text())
    assert {f["code"] for f in found if f["severity"] == "error"} == {"FL621", "FL127"}


@pytest.mark.parametrize(
    ("name", "hook"),
    [("tensor_hook", "<lambda>"), ("parameter_hook", "rescale"), ("module_hook", "Normalise")],
)
def test_a_hook_that_spoils_a_gradient_is_named(runs: Path, name: str, hook: str) -> None:
    assert birth(runs, name)["evidence"]["hook"] == hook


def test_what_wrote_a_parameter_by_hand_is_told_apart_from_the_step(runs: Path) -> None:
    found = birth(runs, "spoilt_by_hand")
    assert found["evidence"]["between"] == [2, 3]
    assert found["evidence"]["lines"] == [f"spoilt_by_hand.py:{FAULTS['spoilt_by_hand'].line}"]
    assert "the step of update 2 did not make it so" in found["message"]
