"""What the CUDA allocator itself knows: its peak, what it reserves beside, which lines allocated what lived at the peak.

The allocator counts what no Python code sees: workspaces of cuBLAS and cuDNN, compiled regions, rounding of sizes.
"""

from __future__ import annotations

import pickle
from dataclasses import dataclass, field
from typing import Any

from fallline.taps.frames import is_user_file, shown_path

__all__ = ["Allocator", "Fragmentation", "fragmentation", "lines_at_peak"]

_EVENTS = 100_000  # the allocator keeps the last ones; some updates of a large model


@dataclass
class Fragmentation:
    """Memory that is reserved and cannot be used as it lies."""

    reserved: int
    allocated: int
    free_in_used: int  # free blocks in segments that are in use: cannot go back to the device
    largest_free: int | None = None  # the largest of them: what fits without asking the device

    @property
    def share(self) -> float:
        return self.free_in_used / self.reserved if self.reserved else 0.0


@dataclass
class Allocator:
    """Follows the allocator of one device from the moment the script uses it. On a machine without CUDA it is silent."""

    recording: bool = False
    allocated_peak: int = 0
    reserved_peak: int = 0
    after_update: list[int] = field(default_factory=list)
    snapshot: Any = None
    at_peak: Fragmentation | None = None  # where a backward begins, with most allocated

    def begin(self) -> None:
        """Record who allocates what, once the script has a CUDA context; we do not make one for it."""
        import torch

        if not self.recording and torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
            torch.cuda.memory._record_memory_history(
                max_entries=_EVENTS, context="alloc", stacks="python"
            )
            self.recording = True

    def look(self) -> None:
        """How reserved memory lies now, from the allocator's counters; the look with most allocated is kept."""
        import torch

        if not self.recording:
            return
        counters = torch.cuda.memory_stats()
        reserved, allocated, holes = (
            int(counters.get(f"{name}.all.current", 0))
            for name in ("reserved_bytes", "allocated_bytes", "inactive_split_bytes")
        )
        if self.at_peak is None or allocated > self.at_peak.allocated:
            self.at_peak = Fragmentation(reserved, allocated, holes)

    def exhausted(self) -> Fragmentation | None:
        """The same when there was no memory left, piece by piece."""
        import torch

        snapshot: Any = torch.cuda.memory_snapshot
        return fragmentation(snapshot()) if self.recording else None

    def update_ends(self) -> None:
        """The numbers of the update; nothing is reset, the script may look at them itself."""
        import torch

        self.begin()
        if self.recording:
            self.allocated_peak = max(self.allocated_peak, torch.cuda.max_memory_allocated())
            self.reserved_peak = max(self.reserved_peak, torch.cuda.max_memory_reserved())
            self.after_update.append(torch.cuda.memory_allocated())

    def end(self) -> None:
        """Take the snapshot, and stop recording."""
        import torch

        if not self.recording:
            return
        self.allocated_peak = max(self.allocated_peak, torch.cuda.max_memory_allocated())
        self.reserved_peak = max(self.reserved_peak, torch.cuda.max_memory_reserved())
        self.snapshot = torch.cuda.memory._snapshot()
        torch.cuda.memory._record_memory_history(enabled=None)
        self.recording = False

    def file(self) -> bytes | None:
        """The snapshot as torch's memory viewer reads it (pytorch.org/memory_viz)."""
        return pickle.dumps(self.snapshot) if self.snapshot is not None else None


def fragmentation(segments: list[dict[str, Any]]) -> Fragmentation:
    """How the reserved memory lies now."""
    reserved = sum(s["total_size"] for s in segments)
    allocated = sum(s["allocated_size"] for s in segments)
    holes = [
        block["size"]
        for segment in segments
        if segment["allocated_size"]
        for block in segment["blocks"]
        if block["state"] == "inactive"
    ]
    return Fragmentation(reserved, allocated, sum(holes), max(holes, default=0))


def lines_at_peak(trace: list[dict[str, Any]]) -> list[tuple[str, int, int]]:
    """(path, line, bytes) of what lived at the highest moment of an allocator's trace, most first.

    What was allocated before the recording began has no entry; it is in no line.
    """
    live: dict[int, dict[str, Any]] = {}
    total = most = 0
    peak = -1
    for index, event in enumerate(trace):
        if event["action"] == "alloc":
            live[event["addr"]] = event
            total += event["size"]
            if total > most:
                most, peak = total, index
        elif event["action"] == "free_completed" and event["addr"] in live:
            total -= live.pop(event["addr"])["size"]
    live.clear()
    for event in trace[: peak + 1]:
        if event["action"] == "alloc":
            live[event["addr"]] = event
        elif event["action"] == "free_completed":
            live.pop(event["addr"], None)
    sizes: dict[tuple[str, int], int] = {}
    for event in live.values():
        where = _line(event.get("frames") or [])
        sizes[where] = sizes.get(where, 0) + event["size"]
    return sorted(((p, n, size) for (p, n), size in sizes.items()), key=lambda x: -x[2])


def _line(frames: list[dict[str, Any]]) -> tuple[str, int]:
    """The innermost frame of the user's; a backward runs in a thread of its own and has none."""
    for frame in frames:
        name = frame["filename"]
        if name.endswith(".py") and is_user_file(name):
            return shown_path(name), int(frame["line"])
    return "(backward, or no Python frame)", 0
