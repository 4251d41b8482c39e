"""Which optimizers divide the size of a gradient out again: for them a mistake that only scales it is nearly invisible."""

from __future__ import annotations

__all__ = ["scale_free"]

# measured for Adam (`fallline prove FL104 FL201 FL124`); the others divide by the same kind of running size
_SCALE_FREE = frozenset(
    ("Adam", "AdamW", "Adamax", "NAdam", "RAdam", "Adagrad", "Adadelta", "RMSprop", "Rprop", "Adafactor", "SparseAdam", "Lion", "Lamb", "LAMB", "Muon")
)  # fmt: skip


def scale_free(optimizer: str) -> bool:
    """Whether a constant factor on the gradient barely changes the update of this class; not for one that is not known."""
    return optimizer in _SCALE_FREE
