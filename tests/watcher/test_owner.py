"""Threads: the one that trains first is watched, and what others do beside it is not taken for its mistakes."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest
import torch
from torch import nn

import fallline
from fallline.integrations.watch import Watch

torch.set_num_threads(1)


def train(updates: int, after_backward: threading.Barrier | None = None) -> None:
    model = nn.Linear(3, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for _ in range(updates):
        optimizer.zero_grad()
        model(torch.randn(4, 3)).square().mean().backward()
        if after_backward is not None:
            after_backward.wait()  # now all of them are in the middle of an update
        optimizer.step()


def watched(folder: Path, threads: list[threading.Thread]) -> Watch:
    with fallline.watch(out=folder / "run", guard="skip") as watch:
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert watch._session is not None and watch._session.failed is None
    return watch


def test_threads_that_train_at_the_same_time_are_not_mixed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    barrier = threading.Barrier(3)
    watch = watched(
        tmp_path, [threading.Thread(target=train, args=(40, barrier)) for _ in range(3)]
    )
    assert not watch.findings
    assert sorted(p.name for p in tmp_path.iterdir()) == ["run"]  # one recorder, one folder
    assert watch.series is not None and len(watch.series.tracks) == 1
    assert len(watch.series.tracks[0].rows) == 40
    assert capsys.readouterr().err.count("several threads train") == 1


def test_a_thread_that_acts_beside_the_one_that_trains_says_nothing(tmp_path: Path) -> None:
    model, over, begun = nn.Sequential(nn.Linear(3, 3), nn.Dropout()), [], threading.Event()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)

    def act() -> None:
        begun.wait()
        while not over:
            model(torch.randn(2, 3))  # a graph that nobody walks

    def learn() -> None:
        for _ in range(60):
            optimizer.zero_grad()
            model(torch.randn(2, 3)).square().mean().backward()
            begun.set()
            optimizer.step()
        over.append(True)

    watch = watched(tmp_path, [threading.Thread(target=t) for t in (act, learn)])
    assert not watch.findings
    assert watch.series is not None and len(watch.series.tracks[0].rows) == 60


def test_threads_that_train_one_after_the_other_are_all_watched(tmp_path: Path) -> None:
    with fallline.watch(out=tmp_path / "run", guard="skip") as watch:
        for _ in range(3):
            thread = threading.Thread(target=train, args=(20,))
            thread.start()
            thread.join()
    assert watch.series is not None
    assert [len(t.rows) for t in watch.series.tracks] == [20] * 3
    assert not watch.findings
