"""`fallline report`: what it prints, what it writes, and what it says when it cannot."""

from __future__ import annotations

import json
import math
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from fallline.errors import RunError
from fallline.report.html import page
from fallline.report.run import SHOWN, finding_lines, summary
from fallline.runs.read import read_run
from fallline.runs.series import Rank, Series
from fallline.runs.update import UpdateRow
from fallline.show.terminal import Paint
from fallline.watcher.recorder import Recorder


@pytest.fixture
def run_folder(
    project: Path, run_maker: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> Path:
    monkeypatch.setenv("MASTER_PORT", "1")
    (project / "train.py").write_text("import torch\nloss.backward()\noptimizer.step()\n")
    return run_maker(project / "run")


def test_the_summary_says_what_happened(run_folder: Path, fallline: Callable[..., object]) -> None:
    ran = fallline("report", run_folder)
    assert ran.status == 0, ran.err
    for part in (
        "train.py",
        "updates         200, 1 of them skipped",
        "clipped at 4 in 20% of the updates",
        "FL101",
        "loss.backward()",
    ):
        assert part in ran.out
    assert (run_folder / "report.html").stat().st_size > 10_000


def _told(rows: list[UpdateRow]) -> str:
    series = Series(ranks=[Rank(0)])
    for row in rows:
        series.append(row)
    return summary(series, [], Paint(False))


def _clipped(index: int, *, skipped: bool = False, norm: float = 18.43) -> UpdateRow:
    norm = math.inf if skipped else norm
    return UpdateRow(index, loss=1.0, lr=0.1, skipped=skipped, clip_norm=norm, clip_threshold=1.0)


def test_a_run_whose_updates_were_not_applied_did_not_train() -> None:
    text = _told([_clipped(i, skipped=i > 0) for i in range(200)])
    assert "updates         199 of 200 updates were not applied: the model did not train\n" in text
    assert "gradient norm   median 18.43, clipped at 1 in 1 of 1 applied update\n" in text, (
        "those that were not applied were not clipped either"
    )


def test_a_run_that_lost_two_of_three_updates_trained_on_the_others() -> None:
    text = _told([_clipped(i, skipped=i < 2) for i in range(3)])
    assert "updates         2 of 3 updates were not applied\n" in text


def test_one_clipped_update_of_many_is_not_none() -> None:
    text = _told([_clipped(i, norm=18.43 if i == 7 else 0.5) for i in range(400)])
    assert "clipped at 1 in 1 of 400 applied updates\n" in text


def test_what_is_not_known_is_left_out() -> None:
    text = _told([UpdateRow(i, "updates by hand", loss=1.0 + i) for i in range(60)])
    rows = text.split("updates by hand\n")[1].split("\n\n")[0].splitlines()
    assert [row.split("  ")[2] for row in rows] == ["updates", "loss"] and "–" not in text


def test_a_search_over_settings_does_not_flood_the_terminal_or_the_page() -> None:
    series = Series(ranks=[Rank(0)])
    for trial in range(40):
        for index in range(10):
            series.append(UpdateRow(index, optimizer=f"optimizer#{trial + 1}", loss=1.0, lr=0.1))
    text = summary(series, [], Paint(False))
    assert text.count("learning rate") == SHOWN
    assert "and 36 more optimizers with 360 updates together" in text
    written = page(series, [])
    assert written.count("<details>") == 36
    assert "of optimizer#1</small>" in written, "the numbers at the top are those of one optimizer"


def test_findings_json_is_written_where_it_is_missing_and_left_where_it_is(
    run_folder: Path, fallline: Callable[..., object]
) -> None:
    fallline("report", run_folder)
    written = json.loads((run_folder / "findings.json").read_text(), parse_constant=pytest.fail)
    assert written[0]["code"] == "FL101" and written[0]["evidence"]["norm"] == "Infinity"
    (run_folder / "findings.json").write_text("[]")
    fallline("report", run_folder)
    assert (run_folder / "findings.json").read_text() == "[]"


def test_json_is_the_contract(run_folder: Path, fallline: Callable[..., object]) -> None:
    ran = fallline("report", run_folder, "--output-format", "json", "--html", "page.html")
    found = json.loads(ran.out)
    assert {
        "code",
        "name",
        "severity",
        "message",
        "path",
        "line",
        "specialist",
        "fix",
        "evidence",
    } <= set(found[0])
    assert Path("page.html").exists() and not (run_folder / "report.html").exists()


@pytest.mark.parametrize("make", [lambda p: None, lambda p: p.mkdir(), lambda p: p.write_text("")])
def test_a_folder_that_is_no_run(
    project: Path, fallline: Callable[..., object], make: Callable[[Path], None]
) -> None:
    make(project / "other")
    ran = fallline("report", "other")
    assert (ran.status, ran.out) == (2, "")
    assert "other is not a run folder" in ran.err and "Traceback" not in ran.err


def test_a_page_that_cannot_be_written(run_folder: Path, fallline: Callable[..., object]) -> None:
    ran = fallline("report", run_folder, "--html", "missing/page.html")
    assert ran.status == 2 and "cannot write" in ran.err and "FL101" in ran.out


def test_reporting_needs_no_torch(run_folder: Path) -> None:
    code = (
        "import sys; sys.modules['torch'] = None\n"
        "from fallline.cli.main import main; sys.exit(main(['report', sys.argv[1]]))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(run_folder)], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr


def test_a_run_without_updates(project: Path, fallline: Callable[..., object]) -> None:
    Recorder(project / "run").close("raised ValueError: no data")
    ran = fallline("report", "run")
    assert ran.status == 0 and "no update" in ran.out and "raised ValueError" in ran.out


def test_thresholds_are_the_users_to_choose(
    run_folder: Path, fallline: Callable[..., object]
) -> None:
    def codes() -> set[str]:
        return {
            f["code"]
            for f in json.loads(fallline("report", run_folder, "--output-format", "json").out)
        }

    assert "FL124" not in codes(), "a fifth of the updates is clipped"
    Path("pyproject.toml").write_text("[tool.fallline.thresholds]\nFL124 = { share = 0.15 }\n")
    assert "FL124" in codes()
    Path("pyproject.toml").write_text("[tool.fallline.thresholds]\nFL124 = { shares = 0.15 }\n")
    assert "has no threshold 'shares'" in fallline("report", run_folder).err
    Path("pyproject.toml").write_text('[tool.fallline]\nthresholds = "low"\n')
    assert "thresholds must hold numbers" in fallline("report", run_folder).err


def judged(folder: Path) -> bool:
    try:
        return any(r.meta.get("judged") for r in read_run(folder).ranks)
    except RunError:  # not even a table yet
        return False


@pytest.mark.slow
def test_a_run_killed_in_the_middle_can_be_reported(
    project: Path, fallline: Callable[..., object]
) -> None:
    pytest.importorskip("torch")
    (project / "train.py").write_text(
        "import torch, time\n"
        "model = torch.nn.Linear(4, 1)\n"
        "optimizer = torch.optim.SGD(model.parameters(), lr=0.01)\n"
        "for update in range(10**9):\n"
        "    loss = model(torch.randn(8, 4)).square().mean()\n"
        "    loss.backward()\n"
        "    optimizer.step()\n"
        "    time.sleep(0.005)\n"
        "    if update == 150:\n"
        "        print('go', flush=True)\n"
    )
    command = [sys.executable, "-m", "fallline", "run", "--out", "run", "train.py"]
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    )
    assert process.stdout is not None and process.stdout.readline() == "go\n"
    deadline = time.monotonic() + 100
    while not judged(project / "run") and time.monotonic() < deadline:
        time.sleep(0.1)  # judge and writer are other threads, and may have to wait for their turn
    process.kill()
    process.wait()
    process.stdout.close()
    assert not (project / "run" / "findings.json").exists()
    ran = fallline("report", "run")
    assert ran.status == 0 and "killed" in ran.out
    found = json.loads((project / "run" / "findings.json").read_text())
    assert "FL106" in {f["code"] for f in found}, "gradients are never cleared"
    assert (project / "run" / "report.html").exists()


@pytest.mark.parametrize(
    ("updates", "status", "says"),
    [
        (0, "finished", ", but no update was made"),
        (21, "finished", " in 21 updates; rules about numbers need 50"),
        (50, "finished", ""),
        (50, "exit 0", ""),
        (80, "interrupted", " in 80 updates before the script was interrupted"),
        (80, "exit 3", " in 80 updates before the script ended with exit status 3"),
        (80, "raised ValueError: a: b", " in 80 updates before the script raised ValueError"),
        (
            9,
            "interrupted",
            " in 9 updates before the script was interrupted; rules about numbers need 50",
        ),
    ],
)
def test_an_all_clear_says_how_much_was_seen(updates: int, status: str, says: str) -> None:
    series = Series(ranks=[Rank(0, {"status": status})])
    for index in range(updates):
        series.append(UpdateRow(index, loss=1.0))
    assert finding_lines(series, [], Paint(False)) == [f"  Nothing wrong was found{says}."]
