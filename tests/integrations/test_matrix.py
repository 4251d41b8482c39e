"""Framework x (healthy, NaN, unscaled accumulation, ranks that drift apart), against the real packages."""

from __future__ import annotations

import ast
import fcntl
import os
import re
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))
from matrix import PAGE, output, result, run_all, table, write_extras, write_programs
from programs import CASES, EXPECTED, EXTRAS, FRAMEWORKS, RANKS, line_of, program

from fallline.runs.read import read_run

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The matrix, run once for all workers of pytest-xdist."""
    base = tmp_path_factory.getbasetemp()
    folder = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "matrix"
    folder.mkdir(exist_ok=True)
    with (folder / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (folder / ".done").exists():
            write_programs(folder)
            write_extras(folder)
            run_all(folder)
            (folder / ".done").touch()
    return folder


def printed(runs: Path, framework: str, case: str, word: str) -> object:
    lines = output(runs, framework, case).splitlines()
    return ast.literal_eval(next(x for x in lines if x.startswith(word)).partition(" ")[2])


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_the_matrix(runs: Path, framework: str, case: str) -> None:
    said = output(runs, framework, case)
    for rank in range(RANKS.get(case, 1)):
        status = (runs / f"{framework}-{case}" / f"rank{rank}.status").read_text()
        assert status == "0", output(runs, framework, case, rank)
    found = result(runs, framework, case)
    assert [f["code"] for f in found] == EXPECTED[case], said
    line = line_of(program(framework, case))
    if line is not None:
        assert found[0]["line"] == line
    if case == "nan":
        assert found[0]["evidence"]["op"] == "log"
        if framework != "transformers":  # which shuffles
            assert found[0]["evidence"]["step"] == 3
    # the guard: whatever happened, the weights are good
    assert printed(runs, framework, case, "FINITE") is True
    # the same words as after `fallline run`, once
    assert said.count("fallline report ") == 1
    assert "the watcher failed" not in said


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_events_come_in_the_order_of_the_protocol(runs: Path, framework: str) -> None:
    """Also where the framework's closure runs inside step, or clips in a place of its own."""
    order = ["zero_grad", "backward", "backward", "clip", "step"]
    assert printed(runs, framework, "healthy", "EVENTS") == order


def test_a_division_is_attributed_to_who_makes_it(runs: Path) -> None:
    assert printed(runs, "accelerate", "healthy", "DIVIDED") == ["accelerate"]
    assert printed(runs, "lightning", "healthy", "DIVIDED") == ["lightning"]
    assert printed(runs, "fabric", "healthy", "DIVIDED") == [2.0]


def test_the_trainers_log_hides_the_nan_that_is_found(runs: Path) -> None:
    logged = printed(runs, "transformers", "nan", "LOGGED")
    assert isinstance(logged, list)
    assert all(loss == loss for loss in logged)
    assert [f["code"] for f in result(runs, "transformers", "nan")] == ["FL620"]


@pytest.mark.parametrize("framework", ["lightning", "transformers"])
def test_a_run_that_raises_is_written_down(runs: Path, framework: str) -> None:
    """Lightning says so in a hook; the Trainer has none, and the end of the program tells."""
    assert "mat1 and mat2 shapes" in output(runs, "extra", f"{framework}_raises")
    status = read_run(runs / f"extra-{framework}_raises" / "run").ranks[0].status
    assert status is not None
    assert status.startswith("raised RuntimeError: mat1 and mat2")
    assert result(runs, "extra", f"{framework}_raises") == []


def test_the_guard_can_stop_lightning(runs: Path) -> None:
    assert "GuardStop: update 3: a gradient is NaN or Inf" in output(
        runs, "extra", "lightning_stops"
    )
    assert [f["code"] for f in result(runs, "extra", "lightning_stops")] == ["FL620"]


def test_ranks_agree_on_a_folder_that_nobody_named(runs: Path) -> None:
    (folder,) = (runs / "extra-folder" / "fallline-runs").iterdir()
    assert {p.name for p in folder.glob("*.sqlite")} == {"rank0.sqlite", "rank1.sqlite"}
    assert "FL320" in (folder / "findings.json").read_text()


@pytest.mark.parametrize("framework", ["accelerate", "lightning", "transformers"])
def test_dividing_on_top_of_the_framework_is_found(runs: Path, framework: str) -> None:
    found = result(runs, "extra", f"{framework}_twice")
    line = line_of(EXTRAS[f"{framework}_twice"])
    assert [(f["code"], f["line"]) for f in found] == [("FL129", line)]


@pytest.mark.parametrize("framework", ["accelerate", "lightning"])
def test_a_weighted_loss_is_not_divided_twice(runs: Path, framework: str) -> None:
    assert result(runs, "extra", f"{framework}_weighted") == []


def test_the_page_has_this_table(runs: Path) -> None:
    """Whatever the versions: `python tests/integrations/matrix.py --write` writes it."""
    page = PAGE.read_text(encoding="utf-8")
    for row in table(runs).splitlines()[2:]:
        framework, cells = row.split(" ", 2)[1], row.split(" | ", 1)[1]
        assert re.search(rf"^\| {framework} [\w.+]+ \| {re.escape(cells)}$", page, re.MULTILINE), (
            row
        )
