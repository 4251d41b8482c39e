"""Limits for processes that read what others wrote: so much memory, and no longer than whoever started them."""

from __future__ import annotations

import os
import threading
import time

__all__ = ["MEMORY", "die_with_parent", "limit_memory"]

MEMORY = 4 << 30  # bytes of address space; the largest project that we measured takes a tenth


def limit_memory(most: int = MEMORY) -> None:
    """From here on this process gets a MemoryError instead of more memory than this. Where the platform knows no such limit, nothing."""
    try:
        import resource  # not on Windows
    except ImportError:
        return
    _, hard = resource.getrlimit(resource.RLIMIT_AS)
    if hard != resource.RLIM_INFINITY:
        most = min(most, hard)
    try:
        resource.setrlimit(resource.RLIMIT_AS, (most, hard))
    except (OSError, ValueError):
        return  # macOS refuses some limits


def die_with_parent() -> None:
    """End this process soon after the one that started it, also when that was killed and could tell nobody."""
    if os.name != "posix":
        return
    parent = os.getppid()

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(0.5)
        os._exit(1)

    threading.Thread(target=watch, name="fallline-parent", daemon=True).start()
