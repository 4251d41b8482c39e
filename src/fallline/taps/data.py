"""Data: epochs and batches of loaders, samplers and their epochs."""

from __future__ import annotations

from dataclasses import dataclass
from threading import get_ident
from typing import Any

from torch.utils.data import DataLoader, DistributedSampler
from torch.utils.data.dataloader import _BaseDataLoaderIter

from fallline.taps.frames import caller
from fallline.taps.patches import Patches, Wrapped
from fallline.taps.tap import (
    Call,
    Tap,
    Topic,
    announced,
    new,
    published,
    published_at_rest,
    switch,
    thread,
)

__all__ = [
    "BATCH",
    "EPOCH",
    "EXHAUSTED",
    "INDEX",
    "SAMPLER_EPOCH",
    "SAMPLER_MADE",
    "BatchCall",
    "EpochCall",
    "Exhausted",
    "IndexCall",
    "SamplerEpochCall",
    "SamplerMade",
]


@dataclass(slots=True)
class EpochCall(Call):
    """A pass over a loader begins. `iterator`: of this pass, after the call."""

    loader: Any
    iterator: Any = None


@dataclass(slots=True)
class BatchCall(Call):
    """The next batch is asked for. `batch`: what came, after the call."""

    iterator: Any
    batch: Any = None


@dataclass(slots=True)
class Exhausted(Call):
    """There is no next batch. Only after."""

    iterator: Any


@dataclass(slots=True)
class IndexCall(Call):
    """A loader takes the indices of its next batch from its sampler: one, or a list of them. Only after."""

    iterator: Any
    index: Any


@dataclass(slots=True)
class SamplerMade(Call):
    """A DistributedSampler was constructed. Only after."""

    sampler: Any


@dataclass(slots=True)
class SamplerEpochCall(Call):
    """`sampler.set_epoch(...)`."""

    sampler: Any


def _patch_iter(patches: Patches) -> None:
    patches.patch(DataLoader, "__iter__", _iter)


def _patch_next(patches: Patches) -> None:
    patches.patch(_BaseDataLoaderIter, "__next__", _next)


def _patch_next_index(patches: Patches) -> None:
    patches.patch(_BaseDataLoaderIter, "_next_index", _next_index)


def _patch_sampler(patches: Patches) -> None:
    patches.patch(DistributedSampler, "__init__", announced(SAMPLER_MADE))


def _patch_set_epoch(patches: Patches) -> None:
    patches.patch(DistributedSampler, "set_epoch", _set_epoch)


def _iter(original: Wrapped) -> Wrapped:
    def __iter__(self: Any) -> Any:
        if not published_at_rest():
            return original(self)
        call = EpochCall(caller(), self)
        for handler in EPOCH.before:
            handler(call)
        call.iterator = iterator = original(self)
        for handler in EPOCH.after:
            handler(call)
        return iterator

    return __iter__


def _next(original: Wrapped) -> Wrapped:
    def __next__(self: Any) -> Any:
        if switch.quiet or (thread.ident != get_ident() and thread.keeps_out()):
            if switch.pulse is None:
                return original(self)
            try:
                return original(self)
            except StopIteration:
                if published_at_rest():
                    end = Exhausted(caller(), self)
                    for after in EXHAUSTED.after:
                        after(end)
                raise
        call = new(BatchCall)
        call.frame, call.iterator, call.batch = caller(), self, None
        for handler in BATCH.before:
            handler(call)
        try:
            call.batch = batch = original(self)
        except StopIteration:
            end = Exhausted(call.frame, self)
            for after in EXHAUSTED.after:
                after(end)
            raise
        for handler in BATCH.after:
            handler(call)
        return batch

    return __next__


def _next_index(original: Wrapped) -> Wrapped:
    def _next_index(self: Any) -> Any:
        index = original(self)
        if not switch.quiet and (thread.ident == get_ident() or not thread.keeps_out()):
            call = new(IndexCall)
            call.frame, call.iterator, call.index = caller(), self, index
            for handler in INDEX.after:
                handler(call)
        return index

    return _next_index


def _set_epoch(original: Wrapped) -> Wrapped:
    def set_epoch(self: Any, *args: Any, **kwargs: Any) -> Any:
        if not published():
            return original(self, *args, **kwargs)
        return SAMPLER_EPOCH.around(
            SamplerEpochCall(caller(), self), original, self, *args, **kwargs
        )

    return set_epoch


_batches = Tap(_patch_next)
EPOCH = Topic(EpochCall, Tap(_patch_iter))
BATCH = Topic(BatchCall, _batches)
EXHAUSTED = Topic(Exhausted, _batches)
INDEX = Topic(IndexCall, Tap(_patch_next_index))
SAMPLER_MADE = Topic(SamplerMade, Tap(_patch_sampler))
SAMPLER_EPOCH = Topic(SamplerEpochCall, Tap(_patch_set_epoch))
