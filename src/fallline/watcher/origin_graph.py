"""Where a non-finite loss came from, as far as its own graph shows without running anything again."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from fallline.replay.shards import local
from fallline.replay.source import line_of
from fallline.replay.tensors import plain_name
from fallline.taps.frames import place
from fallline.watcher.origin_trace import Story, describe

__all__ = ["from_graph"]


def from_graph(loss: Tensor) -> Story | None:
    """The operation nearest the root whose saved inputs are finite and whose result is not."""
    node: Any = loss.grad_fn
    where = place()
    for _ in range(64):
        if node is None:
            return None
        saved = _saved(node)
        if (
            saved
            and all(bool(torch.isfinite(t).all()) for t in saved)
            and _makes_bad(plain_name(node.name()), saved)
        ):
            op = plain_name(node.name())
            at = line_of(op, where.at) if where is not None else None
            return Story(op, at, None, inputs=[describe(t) for t in saved])
        node = next((n for n, _ in node.next_functions if n is not None), None)
    return None


def _saved(node: Any) -> list[Tensor]:
    found = []
    for name in ("_saved_self", "_saved_other", "_saved_exponent"):
        try:
            value = getattr(node, name)
        except (AttributeError, RuntimeError):
            continue
        if isinstance(value, Tensor) and value.is_floating_point():
            found.append(local(value))
    return found


def _makes_bad(op: str, saved: list[Tensor]) -> bool:
    """Whether the operation, on what it saved, gives a non-finite result."""
    function = getattr(torch, op, None)
    if function is None:
        return False
    try:
        with torch.no_grad():
            return not bool(torch.isfinite(function(*saved)).all())
    except Exception:
        return False
