"""The global order of samples: which one comes when, whatever the number of ranks and workers.

An epoch is one list of samples, made from the seed and the epoch's number alone. All ranks together take the next `world_size x
batch_size` of it, each a share. So a place in the data is one number, the samples that are behind; a run continues from it on any number of ranks,
without reading past anything, and the samples of any update can be named.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch.utils.data import Dataset, IterableDataset, Sampler, get_worker_info

from fallline.engine import rng
from fallline.errors import EngineError

__all__ = ["Order", "Place", "Share", "place_of"]


class Place:
    """Where an epoch is: how many samples are behind, and which ranges of it are left out."""

    def __init__(self, batch_size: int, rank: int, world_size: int) -> None:
        if batch_size < 1 or not 0 <= rank < world_size:
            raise EngineError(
                f"batch_size={batch_size}, rank={rank} of {world_size}: give a batch size of 1 or more, and a rank below world_size"
            )
        self.batch_size, self.rank, self.world_size = batch_size, rank, world_size
        self.epoch = 0
        self.start = 0  # samples of the epoch that are behind, when an iterator is made
        self.left_out: dict[int, list[tuple[int, int]]] = {}  # by epoch: ranges to skip

    def set_epoch(self, epoch: int) -> None:
        if epoch != self.epoch:
            self.epoch, self.start = epoch, 0

    @property
    def together(self) -> int:
        """Samples that all ranks take at once."""
        return self.batch_size * self.world_size

    def behind(self, batches: int) -> int:
        """How many samples of the epoch are behind after so many batches of each rank."""
        position = self.start + batches * self.together
        for begin, end in self._ahead():
            if begin < position:
                position += end - max(begin, self.start)
        return position

    def _ahead(self) -> list[tuple[int, int]]:
        """The ranges that are left out from here on, joined where they touch."""
        joined: list[tuple[int, int]] = []
        for begin, end in sorted(self.left_out.get(self.epoch, [])):
            if end <= self.start:
                continue
            if joined and begin <= joined[-1][1]:
                joined[-1] = (joined[-1][0], max(end, joined[-1][1]))
            else:
                joined.append((begin, end))
        return joined

    def leave_out(self, epoch: int, begin: int, end: int) -> None:
        """Never give these samples of an epoch again: they broke the run."""
        self.left_out.setdefault(epoch, []).append((begin, end))


class Order(Place, Sampler[list[int]]):
    """A batch sampler for map-style datasets: `DataLoader(dataset, batch_sampler=fallline.Order(len(dataset), 32, seed=0))`.

    Every rank gets the share of its own; nothing is padded and nothing is given twice. `ranks.loader` makes one.
    """

    def __init__(
        self,
        size: int,
        batch_size: int,
        *,
        seed: int = 0,
        shuffle: bool = True,
        drop_last: bool = False,
        rank: int = 0,
        world_size: int = 1,
    ) -> None:
        super().__init__(batch_size, rank, world_size)
        self.size, self.seed, self.shuffle, self.drop_last = size, seed, shuffle, drop_last
        self.numbered = False  # whether the epoch goes along with the index, for `Seeded`

    def behind(self, batches: int) -> int:
        return min(self.size, super().behind(batches))

    def samples(self, epoch: int, begin: int, end: int) -> list[int]:
        """The indices at these places of an epoch."""
        indices: list[int] = self._order(epoch)[begin:end].tolist()
        return indices

    def _order(self, epoch: int) -> torch.Tensor:
        if not self.shuffle:
            return torch.arange(self.size)
        mixed = random.Random(f"{self.seed}/{epoch}").getrandbits(62)
        return torch.randperm(self.size, generator=torch.Generator().manual_seed(mixed))

    def _places(self) -> torch.Tensor:
        """The places that are still to come."""
        keep = torch.ones(self.size, dtype=torch.bool)
        keep[: self.start] = False
        for begin, end in self.left_out.get(self.epoch, []):
            keep[begin:end] = False
        return keep.nonzero().flatten()

    def __iter__(self) -> Iterator[list[int]]:
        ahead = self._order(self.epoch)[self._places()]
        if self.numbered:
            ahead = ahead + self.epoch * self.size
        for begin in range(0, len(ahead), self.together):
            chunk = ahead[begin : begin + self.together]
            mine: list[int] = chunk[self.rank :: self.world_size].tolist()
            if mine and (len(chunk) == self.together or not self.drop_last):
                yield mine

    def __len__(self) -> int:
        full, rest = divmod(len(self._places()), self.together)
        return full + (not self.drop_last and rest > self.rank)


class Share(Place, IterableDataset[Any]):
    """One rank's share of a stream, also with several workers: `DataLoader(fallline.Share(stream, 32, rank=r, world_size=n), batch_size=32)`.

    The stream must give the same items in the same order to everybody who reads it. It is read past what is behind, unless it has
    `iter_from(number_of_items)`.
    """

    def __init__(self, stream: Any, batch_size: int, *, rank: int = 0, world_size: int = 1) -> None:
        super().__init__(batch_size, rank, world_size)
        self.stream = stream

    def set_epoch(self, epoch: int) -> None:
        super().set_epoch(epoch)
        if callable(getattr(self.stream, "set_epoch", None)):
            self.stream.set_epoch(epoch)

    def samples(self, epoch: int, begin: int, end: int) -> list[int]:
        """The numbers of the items in the stream."""
        return list(range(begin, end))

    def __iter__(self) -> Iterator[Any]:
        worker = get_worker_info()
        workers, number = (1, 0) if worker is None else (worker.num_workers, worker.id)
        taken = 0
        skipped = self._ahead()
        for index, item in self._from(self.start):
            if any(begin <= index < end for begin, end in skipped):
                continue
            batch, place = divmod(taken, self.together)
            taken += 1
            # Whole batches go to one worker, in turn: that is the order in which a DataLoader asks them.
            if place % self.world_size == self.rank and batch % workers == number:
                yield item

    def _from(self, start: int) -> Iterator[tuple[int, Any]]:
        if callable(getattr(self.stream, "iter_from", None)):
            yield from enumerate(self.stream.iter_from(start), start)
            return
        for index, item in enumerate(self.stream):
            if index >= start:
                yield index, item


class Seeded(Dataset[Any]):
    """A dataset whose randomness depends on the seed, the epoch and the sample alone: the same augmentation on any worker, after any resume."""

    def __init__(self, dataset: Any, seed: int) -> None:
        self.dataset, self.seed = dataset, seed

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitem__(self, number: int) -> Any:
        epoch, index = divmod(number, len(self.dataset))
        now = None if get_worker_info() is not None else rng.capture_host()
        mixed = random.Random(f"{self.seed}/{epoch}/{index}").getrandbits(32)
        random.seed(mixed)
        torch.manual_seed(mixed)
        rng.seed_numpy(mixed)
        try:
            return self.dataset[index]
        finally:
            if now is not None:
                rng.restore(now)

    def __getattr__(self, name: str) -> Any:
        if name == "dataset":  # while it is unpickled in a worker
            raise AttributeError(name)
        return getattr(self.dataset, name)


def place_of(loader: Any) -> Order | Share | None:
    """The loader's global order, where it has one."""
    candidates: Sequence[Any] = (
        getattr(loader, "batch_sampler", None),
        getattr(loader, "dataset", None),
    )
    return next((c for c in candidates if isinstance(c, (Order, Share))), None)
