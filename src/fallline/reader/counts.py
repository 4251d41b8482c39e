"""Counts: which names stand for one, and how large ones shrink on paper."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from fallline.api.values import Const

__all__ = ["COUNTED", "SIZE", "SIZED", "Counts", "small"]

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


@dataclass(slots=True)
class Counts:
    """What one execution has done about counts so far."""

    # literal windows, and in how many micro-batches each is executed
    shrunk: dict[int, int] = field(default_factory=dict)
    # unknown counts that a loop goes up to, and how far it goes
    ranges: dict[str, int] = field(default_factory=dict)
    compared: int = 0  # tests decided by known numbers
    # how often each `try: next(batches)` was met, by its id
    tried: dict[int, int] = field(default_factory=dict)

    def on_paper(self, count: Const) -> int:
        """A count that a counter is compared with: literals shrink as they do in loops; counters and data lengths do not."""
        number: int = count.value
        return number if count.varying or count.batches else self.small(number)

    def small(self, number: int) -> int:
        """A large literal count as it is executed on paper; the last of a shrunk window stays its last."""
        for offset in (0, 1, -1):
            if number + offset in self.shrunk:
                return self.shrunk[number + offset] - offset
        return small(number)
