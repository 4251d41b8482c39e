"""Events of data: epochs and batches of loaders, samplers that are told the epoch."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from fallline.events import Event, Kind
from fallline.taps.data import BatchCall, EpochCall, Exhausted, SamplerEpochCall, SamplerMade
from fallline.watcher.taps_facts import length_of

if TYPE_CHECKING:
    from fallline.watcher.objects import Objects
    from fallline.watcher.routine import Routine
    from fallline.watcher.taps_kept import KeptGraphs

__all__ = ["DataTeller"]


class DataTeller:
    """What loaders and samplers do. Not on its own: a part of `Teller`."""

    objects: Objects
    kept: KeptGraphs
    routine: Routine
    emit: Callable[..., Event]

    def __init__(self) -> None:
        super().__init__()
        # iterator → its loader, and [batches given, still in the middle]
        self._iterators: weakref.WeakKeyDictionary[Any, tuple[weakref.ref[Any], list[Any]]] = (
            weakref.WeakKeyDictionary()
        )
        self._epochs: dict[str, int] = {}

    def in_loop(self) -> str | None:
        """Whether we are between the batches of a loader, or between its epochs."""
        if not self._epochs:
            return None
        return "batch" if any(middle for _, (_, middle) in self._iterators.values()) else "epoch"

    def epoch(self, call: EpochCall) -> None:
        name = self.loader_id(call.loader)
        index = self._epochs[name] = self._epochs.get(name, -1) + 1
        self._iterators[call.iterator] = (weakref.ref(call.loader), [0, False])
        self.emit(Kind.EPOCH, call.place, loader=name, index=index)

    def loader_id(self, loader: Any) -> str:
        known = self.objects.known(loader)
        if known is not None:
            return known
        sampler = getattr(loader, "sampler", None)
        held = self.objects.known(sampler) if sampler is not None else None
        length = length_of(loader)
        return self.objects.name(
            "loader",
            loader,
            endless=True if length is None else None,
            length=length,
            sampler=held,
            workers=getattr(loader, "num_workers", None),
            shuffle=type(sampler).__name__ == "RandomSampler",
        )

    def batch_event(self, call: BatchCall) -> None:
        entry = self._iterators.get(call.iterator)
        loader = entry[0]() if entry is not None else None
        if entry is None or loader is None:
            return
        index, entry[1][0] = entry[1][0], entry[1][0] + 1
        entry[1][1] = True
        name = self.loader_id(loader)
        length = self.objects.described[name].fact("length")
        last = None if length is None else index + 1 == length
        if self.routine.expected("batch", loader, call.frame, last) is not None:
            return
        self.emit(
            Kind.BATCH,
            call.place,
            loader=name,
            index=index,
            last=last,
            endless=True if length is None else None,
        )

    def epoch_end(self, call: Exhausted) -> None:
        entry = self._iterators.get(call.iterator)
        loader = entry[0]() if entry is not None else None
        if entry is not None and loader is not None:
            entry[1][1] = False
            self.emit(Kind.EPOCH_END, call.place, loader=self.loader_id(loader))
            self.kept.pass_over()

    def sampler_made(self, call: SamplerMade) -> None:
        sampler, where = call.sampler, call.place
        self.objects.name(
            "sampler",
            sampler,
            where.at if where else None,
            type=type(sampler).__name__,
            shuffle=bool(getattr(sampler, "shuffle", False)),
        )

    def sampler_epoch(self, call: SamplerEpochCall) -> None:
        name = self.objects.name("sampler", call.sampler)
        self.emit(Kind.SAMPLER_EPOCH, call.place, sampler=name)
