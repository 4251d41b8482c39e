"""Fingerprints of a run: numbers that are the same where parameters or data are, and close where those are. Knows no torch.

A parameter's print is `WIDTH` doubles: its norm, and its products with fixed vectors. So two prints say not only whether two
parameters differ but about how far they are apart, which is what tells rounding from a different training.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field

__all__ = ["BATCH", "INDICES", "PARAMETERS", "RATES", "WIDTH", "Print", "distance", "norm"]

PARAMETERS = "parameters"  # name: optimizer, index: the update that follows
BATCH = "batch"  # name: loader/epoch, number: the batch, index: the update it was for; one double for each sample
INDICES = "indices"  # the same, of the sampler's indices
RATES = "rates"  # name: optimizer; the learning rate of each group
KINDS = (PARAMETERS, BATCH, INDICES, RATES)
WIDTH = 9  # doubles for each parameter: with few vectors a distance is known only roughly


@dataclass(slots=True)
class Print:
    """One row of the table `prints`."""

    kind: str
    name: str
    index: int
    number: int = 0
    values: array[float] = field(default_factory=lambda: array("d"))


def norm(values: Sequence[float], parameter: int) -> float:
    """Of the parameter's elements that are looked at."""
    return values[WIDTH * parameter]


def distance(a: Sequence[float], b: Sequence[float], parameter: int) -> float:
    """About how far two states of a parameter are apart. The vectors have a mean square of one half."""
    at = WIDTH * parameter
    gaps = [a[k] - b[k] for k in range(at + 1, at + WIDTH)]
    apart = math.sqrt(2 * sum(g * g for g in gaps) / len(gaps))
    return max(apart, abs(a[at] - b[at])) if apart == apart else math.inf
