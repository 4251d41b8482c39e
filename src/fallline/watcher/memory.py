"""How much memory a run holds, and how many autograd graphs of the past it keeps alive.

A loss kept after its backward holds few bytes and a whole graph of nodes. So graphs are counted directly: each
graph's last node carries a small token, which dies with the node.
"""

from __future__ import annotations

import os
import weakref
from typing import Any

__all__ = ["LiveGraphs", "live_bytes"]

_PAGE = os.sysconf("SC_PAGE_SIZE") if hasattr(os, "sysconf") else 4096


class _Token:
    __slots__ = ("__weakref__",)


class LiveGraphs:
    """Counts autograd graphs that are still alive. `note` each loss before its backward, each output of a model."""

    def __init__(self) -> None:
        self._tokens: weakref.WeakSet[_Token] = weakref.WeakSet()

    def note(self, tensor: Any) -> None:
        """Remember the graph that this tensor ends."""
        node = getattr(tensor, "grad_fn", None)
        if node is None:
            return
        metadata = node.metadata
        if "fallline" not in metadata:
            token = _Token()
            metadata["fallline"] = token
            self._tokens.add(token)

    @property
    def alive(self) -> int:
        """How many of them there are now."""
        return len(self._tokens)


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
