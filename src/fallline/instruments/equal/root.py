"""What a loss was divided or multiplied by, after its own reduction: read off the root of its graph."""

from __future__ import annotations

import math
from typing import Any

from torch import Tensor

__all__ = ["divisors_of"]

_DEPTH = 24
_THROUGH = frozenset(
    {
        "ViewBackward0", "ReshapeAliasBackward0", "UnsafeViewBackward0", "SqueezeBackward0", "SqueezeBackward1",
        "UnsqueezeBackward0", "ToCopyBackward0", "CloneBackward0", "AliasBackward0", "ExpandBackward0",
    }
)  # fmt: skip


def divisors_of(loss: Any) -> list[float]:
    """`loss / 4 * 0.5` → [2.0, 4.0]: from the root inwards, up to the first operation that is not with a plain number.

    What is undone is left out: a loop that has counted all its tokens multiplies by what the framework divides by.
    """
    node = loss.grad_fn if isinstance(loss, Tensor) else None
    found: list[float] = []
    for _ in range(_DEPTH):
        if node is None:
            break
        name = node.name()
        following = [n for n, _ in node.next_functions if n is not None]
        if name in ("DivBackward0", "DivBackward1", "MulBackward0") and len(following) == 1:
            value = _operand(node)
            if value is None or not value:
                break
            _divide(found, value if name.startswith("Div") else 1 / value)
        elif name not in _THROUGH:
            break
        node = following[0] if following else None
    return found


def _divide(found: list[float], by: float) -> None:
    for place, other in enumerate(found):
        if other != 1 and math.isclose(other * by, 1, rel_tol=1e-6):
            del found[place]
            return
    found.append(by)


def _operand(node: Any) -> float | None:
    for name in ("_saved_other", "_saved_self"):
        try:
            value = getattr(node, name)
        except (AttributeError, RuntimeError):  # not saved because nothing needs it
            continue
        if isinstance(value, Tensor):
            return float(value) if value.numel() == 1 else None
        if isinstance(value, int | float):
            return float(value)
    return None
