"""Where the memory of a training script goes: the peak and who holds it, what grows, what each remedy would save."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from fallline.errors import UsageError
from fallline.instruments.frame import Progress
from fallline.instruments.memory.report import Memory
from fallline.instruments.script import Ran, Script, run_until

if TYPE_CHECKING:
    from fallline.instruments.memory.observer import MemoryObserver

__all__ = ["REMEDIES", "Memory", "measure_memory"]

# What `--with` takes.
REMEDIES = ("micro-batch", "checkpoint", "bf16", "set_to_none", "no-foreach", "fused")


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
        raise UsageError(f"there is no remedy '{remedy}'; the remedies are {', '.join(REMEDIES)}")
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
