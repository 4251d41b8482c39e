"""Other batches of the same samples: what a DataLoader is made with is changed, so its own sampler and collate_fn do the work.

In every way the samples are read in this process, and what a dataset draws at random depends on the sample alone, not on what was
drawn before: an augmented picture is the same picture in a small batch and in a large one.
"""

from __future__ import annotations

import inspect
import random
import zlib
from collections.abc import Iterator
from itertools import islice
from typing import Any

import torch
from torch.utils.data import DataLoader
from torch.utils.data._utils.fetch import _MapDatasetFetcher
from torch.utils.data.dataloader import _BaseDataLoaderIter

from fallline.engine import rng
from fallline.instruments.equal.targets import of_the_kind, unshifted
from fallline.instruments.equal.way import Way
from fallline.taps.patches import Patches, Wrapped

__all__ = ["number_of", "vary_loaders"]

_PARAMETERS = list(inspect.signature(DataLoader.__init__).parameters)[1:]


def number_of(loader: Any) -> int:
    """Which DataLoader of the script it is, or whose iterator; -1 for one that was made before."""
    return int(getattr(loader, "_fallline_number", -1))


def vary_loaders(way: Way, patches: Patches) -> None:
    """Loaders that are made from here on give the batches of this way."""
    made = [0]
    training: list[Any] = []  # the dataset of the loader that is varied

    def make(original: Wrapped) -> Wrapped:
        def __init__(self: Any, *args: Any, **kwargs: Any) -> None:
            options = dict(zip(_PARAMETERS, args, strict=False)) | kwargs
            number, made[0] = made[0], made[0] + 1
            object.__setattr__(self, "_fallline_number", number)
            _in_this_process(options)
            if number == way.loader:
                training.append(options["dataset"])
                _change(options, way)
            original(self, **options)

        return __init__

    patches.patch(DataLoader, "__init__", make)
    patches.patch(_BaseDataLoaderIter, "__init__", _numbered)
    patches.patch(_MapDatasetFetcher, "fetch", _fetch)
    if way.one_sample:
        patches.patch(_MapDatasetFetcher, "fetch", lambda original: _fetch_one(original, training))
    if way.at_once * way.rank_batches > 1 or way.limit:
        patches.patch(_BaseDataLoaderIter, "_next_data", lambda original: _next_data(original, way))


def _numbered(original: Wrapped) -> Wrapped:
    def __init__(self: Any, loader: Any, *args: Any, **kwargs: Any) -> None:
        self._fallline_number = number_of(loader)
        original(self, loader, *args, **kwargs)

    return __init__


def _in_this_process(options: dict[str, Any]) -> None:
    options["num_workers"] = 0
    for name in ("prefetch_factor", "multiprocessing_context", "timeout", "persistent_workers"):
        options.pop(name, None)


def _change(options: dict[str, Any], way: Way) -> None:
    times = way.at_once * way.rank_batches
    if way.before and isinstance(options["dataset"], torch.utils.data.IterableDataset):
        raise NotImplementedError("later updates of an IterableDataset cannot be made at once")
    if way.batches:
        _by_batches(options)
        options["batch_sampler"] = _Given(options["batch_sampler"], way.batches)
        return
    if way.before:
        _by_batches(options)
    if options.get("batch_sampler") is not None:
        options["batch_sampler"] = _Batches(options["batch_sampler"], times, way.limit, way.before)
    elif options.get("batch_size", 1) is not None:
        size = options.get("batch_size", 1)
        if isinstance(options["dataset"], torch.utils.data.IterableDataset):
            options["batch_size"] = size * times
            return
        if way.limit:
            generator, shuffle = options.get("generator"), options.pop("shuffle", None)
            sampler = options.pop("sampler", None) or _sampler(
                options["dataset"], shuffle, generator
            )
            options["sampler"] = _First(sampler, way.limit * size)
        options["batch_size"] = size * times
    if way.reverse:
        _reverse(options)
    if way.pad:
        _pad(options, way.pad)
    if way.labels:
        _shift_back(options)


def _by_batches(options: dict[str, Any]) -> None:
    """A batch size, made a batch sampler: the batches before a later update keep their size."""
    if options.get("batch_sampler") is not None:
        return
    size, last = options.pop("batch_size", 1), options.pop("drop_last", False)
    generator, shuffle = options.get("generator"), options.pop("shuffle", None)
    sampler = options.pop("sampler", None) or _sampler(options["dataset"], shuffle, generator)
    options["batch_sampler"] = torch.utils.data.BatchSampler(sampler, size, last)


def _sampler(dataset: Any, shuffle: Any, generator: Any) -> Any:
    if shuffle:
        return torch.utils.data.RandomSampler(dataset, generator=generator)
    return torch.utils.data.SequentialSampler(dataset)


class _Inner:
    """Stands for a sampler, and answers as it does where it is asked for anything else (`set_epoch`, `batch_size`)."""

    def __init__(self, inner: Any) -> None:
        self.__dict__["_inner"] = inner

    def __getattr__(self, name: str) -> Any:
        return getattr(self.__dict__["_inner"], name)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self.__dict__["_inner"], name, value)


class _First(_Inner):
    """The first samples of a sampler."""

    def __init__(self, inner: Any, most: int) -> None:
        super().__init__(inner)
        self.__dict__["_most"] = most

    def __iter__(self) -> Iterator[Any]:
        return islice(iter(self._inner), self._most)

    def __len__(self) -> int:
        return min(len(self._inner), int(self._most))


class _Batches(_Inner):
    """So many batches of a batch sampler made one, and no more than `limit` of its own; the first `before` as they are."""

    def __init__(self, inner: Any, times: int, limit: int, before: int = 0) -> None:
        super().__init__(inner)
        self.__dict__.update(_times=times, _limit=limit, _before=before)

    def __iter__(self) -> Iterator[list[Any]]:
        batches = iter(self._inner)
        yield from islice(batches, self._before)
        if self._limit:
            batches = islice(batches, self._limit)
        while group := list(islice(batches, self._times)):
            yield [index for batch in group for index in batch]

    def __len__(self) -> int:
        whole = len(self._inner) - self._before
        whole = min(whole, self._limit) if self._limit else whole
        return int(self._before - (-whole // self._times))


class _Given(_Inner):
    """Batches of these samples, then those of a batch sampler."""

    def __init__(self, inner: Any, batches: tuple[tuple[int, ...], ...]) -> None:
        super().__init__(inner)
        self.__dict__["_batches"] = batches

    def __iter__(self) -> Iterator[list[Any]]:
        yield from map(list, self._batches)
        yield from islice(iter(self._inner), len(self._batches), None)

    def __len__(self) -> int:
        return len(self._inner)


def _fetch(original: Wrapped) -> Wrapped:
    """Before each sample the generators are set by its index, and put back after the batch."""

    def fetch(self: Any, indices: Any) -> Any:
        kept = rng.capture_host()
        try:
            if not self.auto_collation or getattr(self.dataset, "__getitems__", None):
                _seed(repr(indices))
                return original(self, indices)
            samples = []
            for index in indices:
                _seed(repr(index))
                samples.append(self.dataset[index])
            _seed("collate")
            return self.collate_fn(samples)
        finally:
            rng.restore(kept)

    return fetch


def _fetch_one(original: Wrapped, training: list[Any]) -> Wrapped:
    """The first training sample, whatever sample of whatever dataset is asked for."""

    def fetch(self: Any, indices: Any) -> Any:
        if not training or not self.auto_collation:
            return original(self, indices)
        own, self.dataset = self.dataset, training[0]
        try:
            return original(self, [0] * len(indices))
        finally:
            self.dataset = own

    return fetch


def _seed(key: str) -> None:
    seed = zlib.crc32(key.encode())
    random.seed(seed)
    torch.default_generator.manual_seed(seed)
    rng.seed_numpy(seed)


def _reverse(options: dict[str, Any]) -> None:
    collate = options.get("collate_fn") or torch.utils.data.default_collate
    options["collate_fn"] = lambda samples: collate(samples[::-1])


def _pad(options: dict[str, Any], more: int) -> None:
    collate = options.get("collate_fn") or torch.utils.data.default_collate
    options["collate_fn"] = lambda samples: padded(collate(samples), more)


def _shift_back(options: dict[str, Any]) -> None:
    """Labels of a batch that are shifted already, for a model that shifts them: as the model wants them, so that they are counted so, too."""
    collate = options.get("collate_fn") or torch.utils.data.default_collate
    options["collate_fn"] = lambda samples: unshifted(collate(samples))


_FILL = {"labels": -100}


def padded(batch: Any, more: int) -> Any:
    """Sequences of a batch with a mask, made longer by what the batch itself is padded with; else labels are ignored there."""
    if not hasattr(batch, "items") or "attention_mask" not in batch:
        return batch
    mask = batch["attention_mask"]
    length = mask.shape[-1]
    longer = {}
    for name, value in batch.items():
        if isinstance(value, torch.Tensor) and value.dim() >= 2 and value.shape[1] == length:
            shape = (value.shape[0], more, *value.shape[2:])
            value = torch.cat([value, value.new_full(shape, _fill(name, value, mask))], dim=1)
        longer[name] = value
    return of_the_kind(batch, longer)


def _fill(name: str, value: torch.Tensor, mask: torch.Tensor) -> Any:
    padding = value[mask == 0] if value.shape[:2] == mask.shape else value[:0]
    return padding.reshape(-1)[0].item() if padding.numel() else _FILL.get(name, 0)


def _next_data(original: Wrapped, way: Way) -> Wrapped:
    """Batches that a dataset makes itself (batch_size=None) are put together when they come."""

    def _next_data(self: Any) -> Any:
        if self._auto_collation or number_of(self) != way.loader:
            return original(self)
        taken = self.__dict__.setdefault("_fallline_taken", 0)
        parts: list[Any] = []
        for _ in range(way.at_once * way.rank_batches):
            if way.limit and taken + len(parts) >= way.limit:
                break
            try:
                parts.append(original(self))
            except StopIteration:
                break
        if not parts:
            raise StopIteration
        self._fallline_taken = taken + len(parts)
        return together(parts)

    return _next_data


def together(parts: list[Any]) -> Any:
    """Several batches as one: tensors are concatenated along the first dimension, lists joined, the rest is the first one's."""
    first = parts[0]
    if isinstance(first, torch.Tensor):
        return torch.cat(parts) if first.dim() else torch.stack(parts).sum()
    if hasattr(first, "items"):
        joined = {name: together([part[name] for part in parts]) for name in first}
        return of_the_kind(first, joined)
    if isinstance(first, tuple) and hasattr(first, "_fields"):
        return type(first)(*(together(list(column)) for column in zip(*parts, strict=True)))
    if isinstance(first, tuple) or (isinstance(first, list) and _columns(parts)):
        return type(first)(together(list(column)) for column in zip(*parts, strict=True))
    if isinstance(first, list):
        return [item for part in parts for item in part]
    return first


def _columns(parts: list[Any]) -> bool:
    """Lists of tensors are columns of a batch; lists of words are samples."""
    return all(isinstance(item, torch.Tensor) for part in parts for item in part)
