"""Which samples a script reads: how many of its dataset, some of them twice in an epoch, every epoch in the same order.

An instrument in one file: an observer that notes what it hears, a result that says it, and a function that runs the script.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

from fallline.instruments.frame import Progress
from fallline.instruments.script import NothingMeasured, Observer, Script, run_until

__all__ = ["Samples", "measure_samples"]

_LEAST = 4  # samples: so few have the same order by chance too often


@dataclass
class Samples:
    """What `measure_samples` found about the first loader that the script iterates."""

    dataset: int | None  # its length, where it has one
    read: int
    distinct: int
    twice: int  # samples that were read more than once within an epoch
    epochs: int
    same_order: bool | None  # the second epoch begins like the first; None: there was no second
    partial: bool
    status: int

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    def text(self) -> str:
        whole = "" if self.dataset is None else f" of {self.dataset:,}"
        lines = [f"samples: {self._verdict()}", f"  {self.distinct:,}{whole} samples were read"]
        if self.epochs > 1:
            lines[-1] += f" in {self.epochs} epochs"
        return "\n".join(lines)

    def _verdict(self) -> str:
        if self.same_order:
            return (
                "every epoch has the same order: set shuffle=True, and under DistributedSampler call "
                "set_epoch(epoch) before each epoch"
            )
        if self.twice:
            return f"{self.twice:,} samples are read more than once within an epoch: the sampler draws with replacement, or batches overlap"
        return "each sample is read at most once in an epoch"


class _Reader(Observer):
    def __init__(self) -> None:
        self.loader: Any = None
        self.epochs: list[list[int]] = []

    def epoch_begins(self, loader: Any) -> None:
        if self.loader is None:
            self.loader = loader
        if loader is self.loader:
            self.epochs.append([])

    def indices_taken(self, iterator: Any, indices: Any) -> None:
        if not self.epochs or iterator._dataset is not self.loader.dataset:
            return  # another loader's, for validation
        taken = indices if isinstance(indices, list | tuple) else [indices]
        self.epochs[-1] += [index for index in taken if isinstance(index, int)]


def measure_samples(
    target: Script | Callable[[], object], *, updates: int = 100, progress: Progress | None = None
) -> Samples:
    """Run a script, or a function that trains, for some updates and say which samples it read."""
    reader = _Reader()
    ran = run_until(target, reader, updates=updates, progress=progress)
    if ran.error is not None and not isinstance(target, Script):
        raise ran.error
    epochs = [epoch for epoch in reader.epochs if epoch]
    if not epochs:
        raise NothingMeasured(ran, "before a DataLoader with indices was read")
    return Samples(
        dataset=_length(reader.loader),
        read=sum(map(len, epochs)),
        distinct=len({index for epoch in epochs for index in epoch}),
        twice=max(sum(n > 1 for n in Counter(epoch).values()) for epoch in epochs),
        epochs=len(epochs),
        same_order=_same_order(epochs),
        partial=ran.partial,
        status=ran.status,
    )


def _length(loader: Any) -> int | None:
    try:
        return len(loader.dataset)
    except TypeError:
        return None


def _same_order(epochs: list[list[int]]) -> bool | None:
    if len(epochs) < 2:
        return None
    common = min(len(epochs[0]), len(epochs[1]))
    return common >= _LEAST and epochs[0][:common] == epochs[1][:common]
