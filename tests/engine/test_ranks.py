"""Several ranks (gloo, on this machine): exact, bitwise equal, one gradient all-reduce for one update."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from gloo import ATTEMPTS, aborted

pytest.importorskip("torch")
HERE = Path(__file__).parent


def run_ranks(stories: str, world: int, folder: Path, worker: str = "rank_worker") -> None:
    for attempt in range(ATTEMPTS):
        (folder / str(attempt)).mkdir()
        status, logs = _run_ranks(stories, world, folder / str(attempt), worker)
        if not any(map(aborted, logs)):
            break
    said = "\n".join(f"rank {i} of {world}:\n{log[-3000:]}" for i, log in enumerate(logs) if log)
    assert status == 0, said


def _run_ranks(stories: str, world: int, folder: Path, worker: str) -> tuple[int, list[str]]:
    environment = {
        **os.environ,
        "OMP_NUM_THREADS": "1",
        "GLOO_SOCKET_IFNAME": os.environ.get("GLOO_SOCKET_IFNAME", "lo"),
    }
    command = [sys.executable, str(HERE / "launch.py"), worker, stories, str(world), str(folder)]
    done = subprocess.run(
        command, env=environment, timeout=600, check=False, capture_output=True, text=True
    )
    logs = [(folder / f"rank-{rank}.log") for rank in range(world)]
    return done.returncode, [done.stderr, *(log.read_text() for log in logs if log.exists())]


@pytest.mark.slow
def test_two_ranks(tmp_path):
    run_ranks(
        "exact,by_hand,loops,overlap,half_precision,misuse,checkpoint,saving,resume,going_back",
        2,
        tmp_path,
    )


@pytest.mark.slow
def test_three_ranks(tmp_path):
    run_ranks("exact,by_hand", 3, tmp_path)


@pytest.mark.slow
def test_sharded_ranks(tmp_path):
    run_ranks("fsdp", 2, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("world", [2, pytest.param(4, marks=pytest.mark.long)])
def test_every_wrapper_and_framework(world, tmp_path):
    pytest.importorskip("accelerate")
    pytest.importorskip("lightning")
    run_ranks(f"matrix,matrix_on_half@{world // 2},matrix_on_twice", world, tmp_path, "mesh_worker")


@pytest.mark.slow
def test_four_ranks_on_meshes(tmp_path):
    run_ranks("unmovable@2,unmovable,nan_in_one_shard,refusals", 4, tmp_path, "mesh_worker")


@pytest.mark.long
def test_every_wrapper_and_framework_on_eight_ranks(tmp_path):
    stories = "matrix,nan_in_one_shard,matrix_on_half@4,matrix_on_twice"
    run_ranks(stories, 8, tmp_path, "mesh_worker")
