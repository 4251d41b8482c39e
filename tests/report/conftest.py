"""A run folder with everything in it that a report can show."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path

import pytest

from fallline.finding import Finding, Severity
from fallline.location import Location
from fallline.runs.rank import RankState, Spent, write_rank
from fallline.runs.samples import COLUMNS, Layout, ParameterInfo, Sample
from fallline.runs.update import UpdateRow
from fallline.watcher.recorder import Recorder


def sample_of(index: int, count: int = 6) -> Sample:
    layout = Layout(
        0, [ParameterInfo(f"layers.{i}.<weight>", "Linear", i, (8, 8)) for i in range(count)]
    )
    values = {
        "norm": 0.5,
        "largest": 0.1,
        "zeros": 0.0,
        "nonfinite": 0.0,
        "weight": 3.0,
        "ratio": 1e-3,
        "state": 1.0,
    }
    numbers = [values.get(c, math.nan) * (i + 1) for i in range(count) for c in COLUMNS]
    found = Sample(layout, lambda: (numbers, 0.5), index=index)
    found.resolve()
    return found


def make_run(folder: Path, updates: int = 200, ranks: int = 1, script: str = "train.py") -> Path:
    """A run with everything in it that a page can show."""
    for rank in range(ranks):
        recorder = Recorder(
            folder,
            rank,
            ranks,
            {"script": script, "argv": ["--lr", "<0.1>"], "cwd": str(folder.parent)},
        )
        recorder.describe("optimizer#1", {"type": "SGD"})
        for index in range(updates):
            recorder.update(
                UpdateRow(
                    index,
                    at=Location(script, 3),
                    loss_at=Location(script, 2),
                    loss=math.nan
                    if index == 150
                    else 2 * math.exp(-index / 90) + 0.1 * (index % 7),
                    lr=0.1,
                    scale=65536.0 / (1 + (index > 100)),
                    skipped=index == 100,
                    clip_norm=1.0 + index % 5,
                    clip_threshold=4.0,
                    seconds={
                        "data": 0.002,
                        "forward": 0.01 * (1 + rank),
                        "backward": 0.02,
                        "step": 0.003,
                    },
                    memory=(300 + index) << 20,
                    graphs=2,
                    sample=sample_of(index) if index % 4 == 0 else None,
                )
            )
        if rank == 0:
            recorder.finding(
                Finding(
                    "FL101",
                    "clip-after-step",
                    Severity.ERROR,
                    "clipped <b>late</b>",
                    Location(script, 2),
                    evidence={"step": 40, "norm": math.inf, "names": ["a", "b"]},
                )
            )
        recorder.close("finished")
        if ranks > 1:
            write_rank(folder, state_of(rank, ranks, updates, script))
    return folder


def state_of(rank: int, ranks: int, updates: int, script: str) -> RankState:
    """Each rank is a little slower than the one before, and the last one is late."""
    seconds = {"forward": 0.01 + 0.001 * rank + 0.02 * (rank == ranks - 1), "backward": 0.02}
    return RankState(
        rank,
        ranks,
        updates=updates,
        ended="finished",
        seconds=seconds | {"wait": 0.02 - 0.002 * rank},
        lines=[Spent(Location(script, 4, function="features"), seconds["forward"] / 0.05)],
    )


@pytest.fixture(scope="session")
def run_maker() -> Callable[..., Path]:
    """Makes run folders."""
    return make_run
