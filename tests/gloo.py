"""torch's gloo threads now and then abort a process that has already left its process group (plain scripts, too: seen twice in
some hundred runs, without fallline in the process). What such a run was to show is run again; any other end counts."""

from __future__ import annotations

import subprocess
from typing import Any

__all__ = ["ATTEMPTS", "aborted", "run_ranks"]

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
