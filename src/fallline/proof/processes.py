"""Processes that have torch already: forked from a server that imported it once and computed nothing.

Every experiment gets one of its own, so that none can leave a seed, a flag or a thread behind for the next, and one that
crashes or never ends takes nobody with it.
"""

from __future__ import annotations

import os
import threading
from multiprocessing import get_all_start_methods, get_context, parent_process
from multiprocessing.context import ForkServerContext, SpawnContext

__all__ = ["end_with_parent", "with_torch"]

# torch imports _dynamo at the first step of an optimizer, which takes longer than most experiments
_READY = ["torch", "torch._dynamo", "torch.distributed", "torch.nn.parallel"]


def with_torch() -> ForkServerContext | SpawnContext:
    """Where processes are started: in milliseconds after the first one."""
    if "forkserver" not in get_all_start_methods():
        return get_context("spawn")
    context = get_context("forkserver")
    context.set_forkserver_preload(_READY)
    return context


def end_with_parent() -> None:
    """This process ends when the one that started it is gone, even if that was killed."""
    threading.Thread(target=_wait, daemon=True).start()


def _wait() -> None:
    parent = parent_process()
    if parent is not None:
        parent.join()
    os._exit(1)
