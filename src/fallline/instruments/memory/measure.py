"""Where the memory of a training script goes: the peak and who holds it, what grows, what each remedy would save."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from fallline.errors import UsageError
from fallline.instruments.frame import Progress
from fallline.instruments.script import Ran, Script, run_until
from fallline.location import Location

if TYPE_CHECKING:
    from fallline.instruments.memory.allocator import Allocator, Fragmentation
    from fallline.instruments.memory.growth import Growth
    from fallline.instruments.memory.observer import MemoryObserver
    from fallline.instruments.memory.remedies import Remedy

__all__ = ["REMEDIES", "Memory", "OutOfMemory", "measure_memory"]

# What `--with` takes.
REMEDIES = ("micro-batch", "checkpoint", "bf16", "set_to_none", "no-foreach", "fused")


@dataclass
class OutOfMemory:
    """Who held the memory when there was none left."""

    message: str
    op: str
    at: Location | None
    module: str
    phase: str
    update: int
    holders: dict[str, int]
    modules: dict[str, int]
    fragmentation: Fragmentation | None = None  # on CUDA


@dataclass
class Memory:
    """What `measure_memory` found. Sizes are bytes on `device`, where the parameters are."""

    device: str
    updates: int
    seconds: float
    partial: bool
    status: int  # the script's own exit status
    before: int  # the highest moment before the first forward
    peak: int
    peak_update: int
    peak_phase: str
    peak_op: str
    peak_at: Location | None
    peak_module: str
    holders: dict[str, int]  # role → bytes at the peak
    activations: int  # when the largest backward began, before it gave any back
    modules: dict[str, int]  # path → bytes of them
    growth: Growth
    remedies: list[Remedy]
    out_of_memory: OutOfMemory | None = None
    applied: str = ""  # the remedy that was in place
    allocator: Allocator | None = None  # on CUDA
    lines: list[tuple[str, int, int]] = field(default_factory=list)  # the allocator's, at its peak

    def to_json(self) -> dict[str, Any]:
        from fallline.instruments.memory.text import as_json

        return as_json(self)

    def text(self) -> str:
        from fallline.instruments.memory.text import as_text

        return as_text(self)


def measure_memory(
    target: Script | str | Callable[[], object],
    *,
    updates: int = 8,
    remedy: str = "",
    progress: Progress | None = None,
) -> Memory:
    """Run a script, or a function that trains, for some updates and account for its memory.

    `remedy` is put in place before: one of `fallline.instruments.memory.remedies.NAMES`. When there is no memory left, the error carries the
    explanation as a note; a script's traceback ends with it, a function's error is raised again.
    """
    if isinstance(target, str):
        target = Script(target)
    if remedy and remedy.partition("=")[0] not in REMEDIES:
        raise UsageError(f"there is no remedy '{remedy}'; there are {', '.join(REMEDIES)}")
    made: list[MemoryObserver] = []

    def observer() -> MemoryObserver:
        from fallline.instruments.memory.observer import MemoryObserver

        made.append(MemoryObserver(updates))
        return made[0]

    def ready(taps: Any, ran: Ran) -> None:
        from fallline.instruments.memory.remedies import put_in_place

        if remedy:
            put_in_place(remedy, taps)

    begun = time.monotonic()
    try:
        ran = run_until(target, observer, updates=updates, ready=ready, progress=progress)
    finally:
        for one in made:
            one.stop()
    seconds = time.monotonic() - begun
    if ran.error is not None and not ran.interrupted and not isinstance(target, Script):
        raise ran.error
    return (made[0] if made else observer()).concluded(ran, seconds, remedy)
