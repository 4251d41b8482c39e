"""`kill -9` of a run at start-up, and of report: every folder is readable, or named as unreadable with the reason."""

from __future__ import annotations

import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from fallline.errors import RunError
from fallline.runs.read import read_run

TRAIN = """\
import torch
model = torch.nn.Linear(2, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
while True:
    optimizer.zero_grad()
    model(torch.ones(4, 2)).sum().backward()
    optimizer.step()
"""


def killed_after(
    seconds: float, *command: str, cwd: Path, begun: Callable[[], bool] = lambda: True
) -> None:
    """Kill it so many seconds after it has begun."""
    process = subprocess.Popen(
        [sys.executable, "-m", "fallline", *command],
        cwd=cwd,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    while not begun() and process.poll() is None:
        time.sleep(0.01)
    time.sleep(seconds)
    process.send_signal(signal.SIGKILL)
    process.wait()


def kill_runs(folder: Path, times: int, longest: float = 2.0) -> None:
    """`longest`: seconds until a run is killed; most are killed sooner."""
    (folder / "train.py").write_text(TRAIN)
    for turn in range(times):
        out = folder / f"run{turn}"
        moment = random.Random(turn).random()
        killed_after(
            longest * moment**2, "run", "--out", str(out), "train.py", cwd=folder, begun=out.exists
        )
        killed_after(0.1 + longest / 2 * moment, "report", str(out), cwd=folder)
        try:
            read_run(out)
        except RunError as error:
            said = str(error)
            assert "is not a run folder" in said or "ended before it wrote anything" in said, said
    assert (folder / "train.py").read_text() == TRAIN


@pytest.mark.slow
def test_killed_a_few_times(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    kill_runs(tmp_path, 4, longest=0.6)


@pytest.mark.long
def test_killed_a_hundred_times(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    kill_runs(tmp_path, 100)
