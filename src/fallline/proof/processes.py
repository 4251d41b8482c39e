"""Processes that have torch already: forked from a server that imported it once and computed nothing.

Every experiment gets one of its own, so that none can leave a seed, a flag or a thread behind for the next, and one that
crashes or never ends takes nobody with it.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from multiprocessing import (
    forkserver,
    get_all_start_methods,
    get_context,
    parent_process,
    resource_tracker,
)
from multiprocessing.context import ForkContext, ForkServerContext, SpawnContext

__all__ = ["begin", "with_torch"]

# torch imports _dynamo at the first step of an optimizer, which takes longer than most experiments
_READY = ["torch", "torch._dynamo", "torch.distributed", "torch.nn.parallel"]


_own = False


def with_torch() -> ForkContext | ForkServerContext | SpawnContext:
    """Where processes are started: in milliseconds after the first one."""
    methods = get_all_start_methods()
    if _own and sys.platform == "linux" and not _has_gpu():
        return get_context(
            "fork"
        )  # this process was made ready already: its ranks need no server of their own
    if "forkserver" not in methods:
        return get_context("spawn")
    context = get_context("forkserver")
    context.set_forkserver_preload(_READY)
    _start_server()
    return context


def _start_server() -> None:
    """Ctrl-C is for the command alone: the server, and what comes from it, would print where it was interrupted."""
    resource_tracker.ensure_running()  # which unblocks signals when it starts: first
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        forkserver.ensure_running()
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def begin() -> None:
    """Called in a process that was started `with_torch` and does nothing else: it ends when its parent is gone, even by a kill."""
    global _own
    _own = True
    threading.Thread(target=_wait, daemon=True).start()


def _has_gpu() -> bool:
    """With one, autograd has threads, which a fork would lose."""
    import torch

    return torch.cuda.is_available()


def _wait() -> None:
    parent = parent_process()
    if parent is not None:
        parent.join()
    os._exit(1)
