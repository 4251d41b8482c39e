"""Counts: which names stand for one, and how large ones shrink on paper."""

from __future__ import annotations

import re

__all__ = ["COUNTED", "SIZE", "SIZED", "small"]

# Names of unknown whole numbers that a window can be made of.
COUNTED = re.compile(
    r"(?i)accum|grad_?acc|micro|chunk|(^|[_.])k$|n_steps|every|interval|freq|num_|n_critic|update_freq|iter_size"
)

# Names of sizes that a loop goes over in steps of a count: two windows' worth.
SIZED = re.compile(r"(?i)shape|size|numel|\blen\b|^len\(|bsz|(^|[_.])bs$")
SIZE = 4


def small(number: int) -> int:
    """Large literal counts shrink, so that a window of 64 is executed in three micro-batches."""
    if number <= 8:
        return number
    return 3 if number <= 64 else 5
