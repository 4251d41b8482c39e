"""torch's gloo threads now and then abort a process that has already left its process group (plain scripts, too: seen twice in
some hundred runs, without fallline in the process). What such a run was to show is run again; any other end counts."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

__all__ = ["ATTEMPTS", "aborted", "run_ranks", "run_workers"]

ATTEMPTS = 3


def aborted(output: str) -> bool:
    """Whether this output is that of a process that gloo has taken down."""
    return "terminate called without an active exception" in output


def run_ranks(command: list[str], **options: Any) -> subprocess.CompletedProcess[str]:
    """`subprocess.run` of a launcher, again where gloo has taken one of its processes down."""
    for _ in range(ATTEMPTS):
        done = subprocess.run(command, capture_output=True, text=True, check=False, **options)
        if not aborted(done.stderr):
            break
    return done


def run_workers(*command: str, world: int, cwd: Path | None = None, seconds: float = 400) -> str:
    """`python COMMAND...` on so many ranks, without a launcher; what they said. Again where gloo has taken one of them down."""
    for _ in range(ATTEMPTS):
        said, statuses = _once(command, world, cwd, seconds)
        if not aborted(said):
            break
    assert statuses == [0] * world, said[-3000:]
    return said


def _once(
    command: tuple[str, ...], world: int, cwd: Path | None, seconds: float
) -> tuple[str, list[int]]:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    shared = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": str(world)}
    processes = [
        subprocess.Popen(
            [sys.executable, *command],
            cwd=cwd,
            env=os.environ
            | shared
            | {"RANK": str(rank), "LOCAL_RANK": str(rank), "OMP_NUM_THREADS": "1"},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for rank in range(world)
    ]
    try:
        said = "".join(process.communicate(timeout=seconds)[0] for process in processes)
    finally:
        for process in processes:
            process.kill()
    return said, [process.returncode for process in processes]
