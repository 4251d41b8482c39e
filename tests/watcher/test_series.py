"""Reading run folders: only what is one, and never changing it."""

from __future__ import annotations

from pathlib import Path

import pytest

from fallline.errors import RunError
from fallline.runs.read import read_run
from fallline.runs.series import Series
from fallline.runs.update import UpdateRow
from fallline.watcher.recorder import Recorder


@pytest.mark.parametrize("make", [lambda p: None, lambda p: p.mkdir(), lambda p: p.write_text("x")])
def test_what_is_no_run_folder_is_said_to_be_none(tmp_path: Path, make: object) -> None:
    folder = tmp_path / "thing"
    make(folder)  # type: ignore[operator]
    with pytest.raises(RunError, match="not a run folder"):
        read_run(folder)


def test_a_broken_file_is_named(tmp_path: Path) -> None:
    (tmp_path / "rank0.sqlite").write_bytes(
        b"not a database at all, but long enough to be looked at"
    )
    with pytest.raises(RunError, match=r"rank0\.sqlite cannot be read"):
        read_run(tmp_path)


def test_one_broken_rank_does_not_hide_the_others(tmp_path: Path) -> None:
    recorder = Recorder(tmp_path)
    recorder.update(UpdateRow(0, loss=1.0))
    recorder.close()
    (tmp_path / "rank1.sqlite").write_bytes(b"")
    run = read_run(tmp_path)
    assert [r.number for r in run.ranks] == [0, 1] and len(run.tracks) == 1
    assert run.ranks[1].status.startswith("unreadable")


def test_norms_come_from_clipping_or_the_guard() -> None:
    run = Series()
    run.append(UpdateRow(0, clip_norm=3.0, grad_norm=1.0))
    run.append(UpdateRow(1, grad_norm=2.0))
    assert run.tracks[0].norms() == [(0, 3.0), (1, 2.0)]
