"""Words that messages share."""

from __future__ import annotations

from fallline.event import Location

__all__ = ["place", "scale_free"]

# Optimizers that divide a constant factor of the gradient out again; measured for Adam and AdamW.
_SCALE_FREE = frozenset({"Adam", "AdamW", "Adamax", "NAdam", "RAdam", "RMSprop", "Adagrad", "Lion"})


def place(at: Location, near: Location) -> str:
    """`line 12` in the file of the finding, `utils.py:12` in another one."""
    return f"line {at.line}" if at.path == near.path else str(at)


def scale_free(optimizer: str) -> bool:
    """Whether a constant factor on the gradient barely changes this optimizer's update."""
    return optimizer in _SCALE_FREE
