"""The recorder: nothing lost, nothing raised, nothing unbounded, readable whatever happens to the process."""

from __future__ import annotations

import math
import os
import signal
import sqlite3
import subprocess
import sys
import tempfile
import textwrap
import threading
import time
from pathlib import Path

import pytest

from fallline.errors import RunError
from fallline.finding import Finding, Severity
from fallline.location import Location
from fallline.runs import store
from fallline.runs.read import read_run
from fallline.runs.series import LIVE_ROWS, Series
from fallline.runs.update import UpdateRow
from fallline.watcher.recorder import Recorder

AT = Location("train.py", 12, function="main")


def row(index: int, **facts: object) -> UpdateRow:
    return UpdateRow(index, at=AT, loss_at=Location("train.py", 11), **facts)  # type: ignore[arg-type]


def test_what_is_recorded_is_read_back(tmp_path: Path) -> None:
    recorder = Recorder(tmp_path / "run", meta={"script": "train.py"})
    recorder.describe("optimizer#1", {"type": "AdamW"})
    seconds = {"data": 0.1, "forward": 0.2, "backward": 0.3, "step": 0.05}
    for index in range(5):
        loss = math.nan if index == 3 else 1.0 / (index + 1)
        recorder.update(
            row(
                index,
                loss=loss,
                lr=0.1,
                clip_norm=2.0,
                clip_threshold=1.0,
                seconds=seconds,
                graphs=index,
            )
        )
    recorder.finding(Finding("FL101", "clip-after-step", Severity.ERROR, "late", AT))
    recorder.close("finished")

    run = read_run(tmp_path / "run")
    (track,) = run.tracks
    assert [r.index for r in track.rows] == [0, 1, 2, 3, 4]
    assert track.rows[1].loss == 0.5 and math.isnan(track.rows[3].loss)
    assert track.rows[0].seconds == seconds
    assert track.rows[0].grad_norm is None, "not measured is not NaN"
    assert (track.at, track.loss_at.line, track.type) == (AT, 11, "AdamW")
    assert track.totals["clipped"] == track.totals["clips"] == 5
    assert run.meta["status"] == "finished" and run.meta["script"] == "train.py"
    assert run.ranks[0].findings[0].code == "FL101"
    assert not list((tmp_path / "run").glob("*-wal")), "a finished run is one plain file"


def test_tensors_are_read_as_they_were(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    recorder = Recorder(tmp_path)
    loss = torch.tensor(2.0, requires_grad=True) * 1
    recorder.update(row(0, loss=loss, clip_norm=torch.tensor(3.0)))
    with torch.no_grad():
        loss.mul_(100)  # a script that reuses its loss
    recorder.update(row(1, loss=torch.empty((), device="meta"), scale=torch.ones(2)))
    recorder.close()
    first, second = read_run(tmp_path).tracks[0].rows
    assert (first.loss, first.clip_norm) == (2.0, 3.0)
    assert (second.loss, second.scale) == (None, None)


def written(folder: Path) -> int:
    """Rows in the file by now; it may not have a table yet."""
    try:
        return sum(len(t.rows) for t in read_run(folder).tracks)
    except RunError:
        return 0


def test_a_killed_run_can_be_read(tmp_path: Path) -> None:
    script = textwrap.dedent(
        """
        import sys, time
        from fallline.runs.update import UpdateRow
        from fallline.watcher.recorder import Recorder
        recorder = Recorder(sys.argv[1], meta={"script": "train.py"})
        for index in range(10**9):
            recorder.update(UpdateRow(index, loss=1.0))
            time.sleep(0.001)
            if index == 1000:
                print("go", flush=True)
        """
    )
    process = subprocess.Popen(
        [sys.executable, "-c", script, str(tmp_path / "run")], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None and process.stdout.readline() == "go\n"
    deadline = time.monotonic() + 100
    while written(tmp_path / "run") < 1000 and time.monotonic() < deadline:
        time.sleep(0.1)  # the writer is another thread, and may have to wait for its turn
    process.send_signal(signal.SIGKILL)
    process.wait()
    process.stdout.close()
    run = read_run(tmp_path / "run")
    assert len(run.tracks[0].rows) >= 1000
    assert run.ranks[0].status == ""
    (tmp_path / "run").chmod(0o555)
    try:
        assert read_run(tmp_path / "run").tracks
    finally:
        (tmp_path / "run").chmod(0o755)


def test_a_folder_that_cannot_be_made_is_made_elsewhere_with_one_warning(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    (tmp_path / "other").mkdir()
    monkeypatch.setattr(tempfile, "mkdtemp", lambda prefix: str(tmp_path / "other"))
    recorder = Recorder(tmp_path / "file" / "run")
    for index in range(100):
        recorder.update(row(index, loss=1.0))
    recorder.close()
    (warning,) = capfd.readouterr().err.splitlines()
    assert warning.endswith(f"it goes to {recorder.folder}")
    assert len(read_run(recorder.folder).tracks[0].rows) == 100


def test_where_nothing_can_be_written_training_goes_on(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setattr(tempfile, "mkdtemp", lambda prefix: str(tmp_path / "file"))
    recorder = Recorder(tmp_path / "file" / "run")
    for index in range(100):
        recorder.update(row(index, loss=1.0))
    recorder.close()
    (warning,) = capfd.readouterr().err.splitlines()
    assert "training continues" in warning


def test_a_full_disk_costs_one_warning(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(self: store.Store, rows: list[UpdateRow]) -> None:
        raise sqlite3.OperationalError("database or disk is full")

    recorder = Recorder(tmp_path)
    recorder.update(row(0))
    monkeypatch.setattr(store.Store, "updates", full)
    for index in range(1, 50):
        recorder.update(row(index))
        time.sleep(0.001)
    recorder.close()
    assert capfd.readouterr().err.count("disk is full") == 1


def test_two_runs_into_one_folder_are_kept_apart(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    recorders = []
    for number in range(3):
        recorders.append(Recorder(tmp_path / "run"))
        recorders[-1].update(row(number))
    for recorder in recorders:
        recorder.close()
    assert [r.folder.name for r in recorders] == ["run", "run-2", "run-3"]
    assert [read_run(r.folder).tracks[0].rows[0].index for r in recorders] == [0, 1, 2]
    assert "already holds a run" in capfd.readouterr().err


def test_the_ranks_of_one_launch_share_a_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MASTER_PORT", "29500")
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
    for name in ("run", "run-2"):  # the second launch must not join the first
        for rank in (1, 0):
            recorder = Recorder(tmp_path / "run", rank, 2)
            recorder.update(row(rank))
            recorder.close()
            assert recorder.folder.name == name
    run = read_run(tmp_path / "run")
    assert [r.number for r in run.ranks] == [0, 1] and run.world == 2


def test_a_forked_child_leaves_the_file_alone(tmp_path: Path) -> None:
    recorder = Recorder(tmp_path)
    recorder.update(row(0))
    child = os.fork()
    if child == 0:
        recorder.update(row(1))
        recorder.close("child")
        os._exit(0)
    os.waitpid(child, 0)
    recorder.close("parent")
    run = read_run(tmp_path)
    assert [r.index for r in run.tracks[0].rows] == [0] and run.meta["status"] == "parent"


def test_disk_and_memory_are_bounded_and_spikes_stay(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store, "MAX_UPDATES", 2_000)
    kept = store.Store.create(tmp_path, 0)
    live = Series()
    for index in range(30_000):
        update = row(
            index, loss=99.0 if index == 1234 else 1.0, grad_norm=0.0 if index == 2345 else 1.0
        )
        kept.updates([update])
        live.append(update)
    kept.close()
    track = read_run(tmp_path).tracks[0]
    assert len(track.rows) <= 2_001
    assert track.totals["updates"] == 30_000
    assert max(r.loss for r in track.rows) == 99.0 and min(r.grad_norm for r in track.rows) == 0.0
    assert [r.index for r in track.rows[-500:]] == list(range(29_500, 30_000)), (
        "the recent past is complete"
    )
    (alive,) = live.tracks
    assert len(alive.rows) <= LIVE_ROWS and max(r.loss for r in alive.rows) == 99.0


def test_a_stalled_writer_drops_rows_instead_of_growing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fallline.watcher.recorder.QUEUE_LIMIT", 50)
    held = threading.Event()
    monkeypatch.setattr(Recorder, "_write", lambda self, batch: held.wait(5))
    recorder = Recorder(tmp_path)
    recorder.update(row(0))
    time.sleep(0.05)
    for index in range(1, 1_000):
        recorder.update(row(index))
    assert recorder.dropped >= 800
    held.set()
    recorder.close()
