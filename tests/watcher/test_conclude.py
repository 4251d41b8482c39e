"""Rank 0 judges for all: it waits for ranks that are still writing, and not for ever."""

from __future__ import annotations

import threading
from pathlib import Path
from types import SimpleNamespace

import pytest

from fallline import conclude
from fallline.rules import rule_by_code
from fallline.runs.update import UpdateRow
from fallline.watcher.recorder import Recorder


def rank(folder: Path, number: int) -> Recorder:
    return Recorder(folder, number, 2, {})


@pytest.fixture(autouse=True)
def one_launch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MASTER_PORT", "12345")


def test_a_rank_whose_file_is_only_just_made_is_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = rank(tmp_path, 0)
    first.close()
    made = tmp_path / "rank1.sqlite"
    made.touch()  # as `claim_folder` leaves it, before there is a table in it
    begun = threading.Event()
    read = conclude.read_run

    def reading(folder: Path) -> object:
        seen = read(folder)
        begun.set()
        return seen

    def late() -> None:
        begun.wait()
        made.unlink()
        second = rank(tmp_path, 1)
        second.update(UpdateRow(0, loss=1.0))
        second.close()

    monkeypatch.setattr(conclude, "read_run", reading)
    thread = threading.Thread(target=late)
    thread.start()
    series, _ = conclude.conclude(tmp_path, wait=True)
    thread.join()
    assert [r.status for r in series.ranks] == ["finished", "finished"]
    assert [t.rank for t in series.tracks] == [1]


def test_a_rank_that_writes_nothing_is_left_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(conclude, "WAIT_FOR_RANKS", 0.2)
    first = rank(tmp_path, 0)
    first.update(UpdateRow(0, loss=1.0))
    first.close()
    series, _ = conclude.conclude(tmp_path, wait=True)
    assert [r.number for r in series.ranks] == [0] and series.world == 2


def test_a_rank_that_goes_on_for_ever_does_not_hold_the_answer_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(conclude, "LONGEST_WAIT", 0.3)
    written = iter(range(10**6))
    monkeypatch.setattr(conclude, "_written", lambda folder: next(written))
    rank(tmp_path, 0).close()
    series, _ = conclude.conclude(tmp_path, wait=True)
    assert len(series.ranks) == 1


@pytest.mark.parametrize("world", [1, 2])
def test_which_rank_saw_it_is_said_where_there_are_several(world: int) -> None:
    seen = {"code": "FL620", "path": "t.py", "line": 3, "rank": 1, "step": 4, "value": "nan"}
    rule, saw = rule_by_code("FL620"), SimpleNamespace(meta={"observed": [seen]})
    assert rule is not None
    (found,) = rule.check_series(SimpleNamespace(ranks=[saw], world=world))
    assert (" at update 4 on rank 1." in found.message) == (world > 1)
    assert (" at update 4." in found.message) == (world == 1)
