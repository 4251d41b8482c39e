"""How long work takes on the GPU, by the GPU's own clock."""

from __future__ import annotations

from collections.abc import Callable

import torch

__all__ = ["milliseconds", "peak_bytes"]


def milliseconds(work: Callable[[], object], *, repeats: int = 20) -> float:
    """The shortest of several runs, after a few that only warm up."""
    for _ in range(3):
        work()
    times = []
    for _ in range(repeats):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        work()
        end.record()
        end.synchronize()
        times.append(begin.elapsed_time(end))
    return float(min(times))


def peak_bytes(work: Callable[[], object]) -> int:
    """The most memory that work needs on top of what is there already."""
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    work()
    torch.cuda.synchronize()
    return int(torch.cuda.max_memory_allocated() - before)
