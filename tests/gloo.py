"""torch's gloo threads now and then abort a process that has already left its process group (plain scripts, too: seen twice in
some hundred runs, without fallline in the process). What such a run was to show is run again; any other end counts."""

from __future__ import annotations

__all__ = ["ATTEMPTS", "aborted"]

ATTEMPTS = 3


def aborted(output: str) -> bool:
    """Whether this output is that of a process that gloo has taken down."""
    return "terminate called without an active exception" in output
