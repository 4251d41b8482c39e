"""Several ranks (gloo, on this machine): exact, bitwise equal, one gradient all-reduce for one update."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from gloo import ATTEMPTS, aborted

pytest.importorskip("torch")
WORKER = Path(__file__).with_name("rank_worker.py")
MESHES = Path(__file__).with_name("mesh_worker.py")


def run_ranks(stories: str, world: int, folder: Path, worker: Path = WORKER) -> None:
    for attempt in range(ATTEMPTS):
        (folder / str(attempt)).mkdir()
        ended = _run_ranks(stories, world, folder / str(attempt), worker)
        if not any(aborted(output) for _, output in ended):
            break
    for number, (status, output) in enumerate(ended):
        assert status == 0, f"rank {number} of {world}:\n{output[-4000:]}"


def _run_ranks(stories: str, world: int, folder: Path, worker: Path) -> list[tuple[int, str]]:
    environment = {
        **os.environ,
        "OMP_NUM_THREADS": "1",
        "GLOO_SOCKET_IFNAME": os.environ.get("GLOO_SOCKET_IFNAME", "lo"),
    }
    ranks = [
        subprocess.Popen(
            [sys.executable, str(worker), stories, str(rank), str(world), str(folder)],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env=environment,
        )
        for rank in range(world)
    ]
    try:
        outputs = [rank.communicate(timeout=300)[0] for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()
    return [(rank.returncode, output) for rank, output in zip(ranks, outputs, strict=True)]


@pytest.mark.slow
def test_two_ranks(tmp_path):
    run_ranks(
        "exact,by_hand,loops,half_precision,misuse,checkpoint,saving,resume,going_back", 2, tmp_path
    )


@pytest.mark.slow
def test_three_ranks(tmp_path):
    run_ranks("exact,by_hand", 3, tmp_path)


@pytest.mark.slow
def test_sharded_ranks(tmp_path):
    run_ranks("fsdp", 2, tmp_path)


@pytest.mark.slow
def test_ranks_of_other_frameworks(tmp_path):
    pytest.importorskip("accelerate")
    pytest.importorskip("lightning")
    run_ranks("frameworks", 2, tmp_path)


@pytest.mark.slow
def test_four_ranks_on_meshes(tmp_path):
    run_ranks("matrix,nan_in_one_shard,refusals,another_world_size", 4, tmp_path, MESHES)


@pytest.mark.long
def test_eight_ranks_on_meshes(tmp_path):
    run_ranks("matrix,nan_in_one_shard", 8, tmp_path, MESHES)
