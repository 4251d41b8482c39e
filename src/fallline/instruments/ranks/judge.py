"""What the numbers of the ranks mean, side by side. Plain arithmetic, without torch."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

__all__ = ["Overlap", "no_sync_gain", "sampler_overlap", "stragglers"]

SLOWER = 1.2  # times the median rank: a straggler


def no_sync_gain(compute: float, communication: float, micro_batches: int) -> float:
    """How much faster accumulating over so many micro-batches is when only the last one synchronises: (c + s) / (c + s / k).

    `compute` and `communication` are of one micro-batch that synchronises; what overlaps with computing is computing.
    """
    if compute < 0 or communication < 0 or compute + communication == 0 or micro_batches < 1:
        raise ValueError(
            "give a time for computing and one for communication, and at least one micro-batch"
        )
    return (compute + communication) / (compute + communication / micro_batches)


@dataclass
class Overlap:
    """Samples that several ranks read."""

    samples: int  # that were read, counted once for each rank
    shared: int  # of them, read by another rank too
    share: float
    ranks: list[int]  # that read some of the same

    @property
    def is_padding(self) -> bool:
        """A DistributedSampler repeats a few samples, so that all ranks have the same number."""
        return self.shared <= 2 * len(self.ranks)


def sampler_overlap(indices: Sequence[Sequence[int | str]]) -> Overlap:
    """From the indices (or fingerprints of batches) that each rank read in one epoch."""
    sets = [set(mine) for mine in indices]
    count = Counter(index for mine in sets for index in mine)
    shared = [sum(count[index] > 1 for index in mine) for mine in sets]
    samples = sum(len(mine) for mine in sets)
    return Overlap(
        samples,
        sum(shared),
        sum(shared) / samples if samples else 0.0,
        [rank for rank, number in enumerate(shared) if number],
    )


def stragglers(seconds: Sequence[float]) -> dict[int, float]:
    """Ranks that take longer than the others for the same, and how many times as long as the median of the others."""
    found = {}
    for rank, own in enumerate(seconds):
        others = [s for r, s in enumerate(seconds) if r != rank]
        if others and own > SLOWER * median(others) > 0:
            found[rank] = own / median(others)
    return found
