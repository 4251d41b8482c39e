"""`kill -9` at any moment: nothing of the user's is lost, and the next start clears away what is left."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

WRONG = """\
import torch
model = torch.nn.Linear(1, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for x in loader:
    optimizer.zero_grad()
    model(x).sum().backward()
    optimizer.step()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
"""


def check(*options: str, cwd: Path) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "fallline", "check", ".", "--jobs", "1", *options]
    return subprocess.Popen(command, cwd=cwd, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def killed_many_times(folder: Path, times: int, options: tuple[str, ...]) -> None:
    for n in range(6):
        (folder / f"a{n}.py").write_text(WRONG)
    started = time.monotonic()
    check(*options, cwd=folder).wait()
    whole = time.monotonic() - started
    fixed = (folder / "a0.py").read_text()
    for turn in range(times):
        for n in range(6):
            (folder / f"a{n}.py").write_text(WRONG)
        process = check(*options, cwd=folder)
        time.sleep(random.Random(turn).random() * whole)
        process.send_signal(signal.SIGKILL)
        process.wait()
        for n in range(6):
            assert (folder / f"a{n}.py").read_text() in (WRONG, fixed), "half a file"
    check(cwd=folder).wait()
    left = [p.name for p in folder.rglob(".fallline-*")]
    assert not left and not list((folder / ".fallline_cache").glob(".fallline-*"))
    assert os.path.isdir(folder / ".fallline_cache")


@pytest.mark.slow
@pytest.mark.parametrize("options", [(), ("--fix",)], ids=["with a cache", "--fix"])
def test_killed_a_few_times(tmp_path: Path, options: tuple[str, ...]) -> None:
    killed_many_times(tmp_path, 10, options)


@pytest.mark.long
@pytest.mark.parametrize("options", [(), ("--fix",)], ids=["with a cache", "--fix"])
def test_killed_a_hundred_times(tmp_path: Path, options: tuple[str, ...]) -> None:
    killed_many_times(tmp_path, 100, options)
