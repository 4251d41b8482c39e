"""How much memory a run holds, and how many autograd graphs of the past it keeps alive.

A loss kept after its backward holds few bytes and a whole graph of nodes. So graphs are counted directly: the last node of
each refers to one and the same object, and how many do is that object's number of references.
"""

from __future__ import annotations

import os
import sys
from typing import Any

__all__ = ["LiveGraphs", "live_bytes"]

_PAGE = os.sysconf("SC_PAGE_SIZE") if hasattr(os, "sysconf") else 4096


class LiveGraphs:
    """Counts autograd graphs that are still alive. `note` each loss before its backward, each output of a model."""

    def __init__(self) -> None:
        self.anchor = object()
        self.others = sys.getrefcount(self.anchor)

    def note(self, tensor: Any) -> None:
        """Remember the graph that this tensor ends."""
        node = getattr(tensor, "grad_fn", None)
        if node is None:
            return
        node.metadata["fallline"] = self.anchor

    @property
    def alive(self) -> int:
        """How many of them there are now."""
        return sys.getrefcount(self.anchor) - self.others


def live_bytes() -> int | None:
    """Bytes of live tensors on the accelerator, where the run uses one; else of this process. No device is waited for."""
    import torch

    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        return int(torch.cuda.memory_allocated())
    try:
        with open("/proc/self/statm", "rb") as file:
            return int(file.read().split()[1]) * _PAGE
    except OSError:
        return None
