"""`fallline demo`: check, run and ask, for real, in front of the reader's eyes."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.slow
def test_the_demo_reads_runs_and_asks(tmp_path: Path) -> None:
    environment = {**os.environ, "TMPDIR": str(tmp_path), "COLUMNS": "100"}
    ran = subprocess.run(
        [sys.executable, "-m", "fallline", "demo"],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    story = [
        "FL201 [*]",
        "Found 4 errors",
        "◄ here",
        "+++ train.py",
        "Nothing found in 1 file.",
        "fallline run --out broken fit.py",
        "report.html",
        "fallline run --out repaired fit.py",
        "fallline ask",
        "(FL601)",
        "--run broken",
    ]
    place = 0
    for part in story:
        place = ran.stdout.index(part, place)
    assert "FL620" in ran.stderr and "of log" in ran.stderr
    (folder,) = tmp_path.glob("fallline-demo-*")
    assert (folder / "broken" / "report.html").stat().st_size > 10_000


@pytest.mark.slow
def test_an_example_is_read_and_run_both_ways(tmp_path: Path) -> None:
    environment = {**os.environ, "TMPDIR": str(tmp_path), "COLUMNS": "100"}
    ran = subprocess.run(
        [sys.executable, "-m", "fallline", "demo", "gan"],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    story = ["FL601", "Repaired:", "+        loss_g = bce(", "Nothing found", "Broken, watched"]
    place = 0
    for part in story:
        place = ran.stdout.index(part, place)
    assert "FL620" in ran.stderr and "Nothing wrong was found" in ran.stderr
