"""Events of data: epochs and batches of loaders, samplers and their epochs."""

from __future__ import annotations

import weakref
from time import perf_counter as now
from typing import Any, Literal

from fallline.events import Batch, Epoch, EpochEnd, Loader, SamplerEpoch
from fallline.location import Location
from fallline.taps.data import (
    BATCH,
    EPOCH,
    EXHAUSTED,
    INDEX,
    SAMPLER_EPOCH,
    SAMPLER_MADE,
    BatchCall,
    EpochCall,
    Exhausted,
    IndexCall,
    SamplerEpochCall,
    SamplerMade,
)
from fallline.taps.tap import Subscription
from fallline.watcher.emit import Emitter, spot
from fallline.watcher.facts import leftover_of, length_of
from fallline.watcher.fuse import Fuse
from fallline.watcher.kept import KeptGraphs
from fallline.watcher.objects import Objects
from fallline.watcher.progress import Draft
from fallline.watcher.recording import Recording
from fallline.watcher.routine import Routine
from fallline.watcher.workers import Workers

__all__ = ["Loaders"]

AHEAD = 1_000  # batches that a sampler has drawn and no loader has given yet


class Loaders:
    """What loaders and samplers do, and how long a batch is waited for."""

    def __init__(
        self,
        emitter: Emitter,
        routine: Routine,
        objects: Objects,
        draft: Draft,
        kept: KeptGraphs,
        recording: Recording,
        workers: Workers,
    ) -> None:
        self._emitter = emitter
        self._routine = routine
        self._objects = objects
        self._draft = draft
        self._kept = kept
        self._workers = workers
        self._recording = recording
        self._told: set[tuple[str, Location]] = set()  # loaders that the run describes, by line
        # iterator → the name of its loader, which may be gone by then, [batches given, still in the middle], and the indices of batches to come, by number
        self._iterators: weakref.WeakKeyDictionary[
            Any, tuple[str, list[Any], dict[int, list[Any]]]
        ] = weakref.WeakKeyDictionary()
        self._numbers: dict[str, Any] = {}  # of workers, by loader
        self._epochs: set[str] = set()
        self.passes = 0  # over any of them
        self._asked = 0.0  # when the next batch was

    def subscribe(self, taps: Subscription, fuse: Fuse) -> None:
        taps.after(EPOCH, fuse.guarded(self._epoch))
        taps.before(BATCH, self._batch_begins)
        taps.after(BATCH, fuse.guarded(self._batch))
        taps.after(EXHAUSTED, fuse.guarded(self._epoch_end))
        taps.after(INDEX, self._drawn)
        taps.after(SAMPLER_MADE, fuse.guarded(self._sampler_made))
        taps.before(SAMPLER_EPOCH, fuse.guarded(self._sampler_epoch))

    def in_loop(self) -> Literal["batch", "epoch"] | None:
        """Whether we are between the batches of a loader, or between its epochs."""
        if not self._epochs:
            return None
        return "batch" if any(middle for _, (_, middle), _ in self._iterators.values()) else "epoch"

    def _epoch(self, call: EpochCall) -> None:
        name = self._name(call.loader)
        self._epochs.add(name)
        self.passes += 1
        self._iterators[call.iterator] = (name, [0, False], {})
        self._numbers[name] = getattr(call.loader, "num_workers", None)
        at, callers = spot(call.place)
        self._emitter.emit(Epoch(at, callers=callers, loader=name))
        self._workers.epoch(call)

    def _name(self, loader: Any) -> str:
        known = self._objects.known(loader)
        if known is not None:
            return known
        sampler = getattr(loader, "sampler", None)
        held = self._objects.known(sampler) if sampler is not None else None
        length = length_of(loader)
        return self._objects.name(
            "loader",
            loader,
            length=length,
            leftover=leftover_of(loader),
            sampler=held,
        )

    def _batch_begins(self, call: BatchCall) -> None:
        self._asked = now()
        if self._draft.clock is not None:
            self._draft.clock.mark("data")

    def _drawn(self, call: IndexCall) -> None:
        """The sampler has drawn a batch, with workers some batches ahead. Every batch passes here, so there is no guard around it."""
        entry = self._iterators.get(call.iterator)
        if entry is not None and isinstance(call.index, list):
            iterator = call.iterator
            number = getattr(iterator, "_send_idx", getattr(iterator, "_num_yielded", None))
            if len(entry[2]) > AHEAD:  # batches that came while the watcher was at rest
                entry[2].clear()
            if number is not None:
                entry[2][number] = call.index

    def _batch(self, call: BatchCall) -> None:
        self._draft.seconds["data"] += now() - self._asked
        self._kept.batches += 1
        if self._draft.clock is not None:
            self._draft.clock.mark("other")
        if self._workers.looking:
            self._workers.batch(call)
        entry = self._iterators.get(call.iterator)
        if entry is None:
            return
        # the iterator's own count: batches that came while the watcher was at rest are in it
        index = getattr(call.iterator, "_num_yielded", entry[1][0] + 1) - 1
        entry[1][0] = index + 1
        drawn = entry[2].pop(index, None)
        if drawn is not None:
            self._draft.indices.append(drawn)
        entry[1][1] = True
        name = entry[0]
        described = self._objects.described[name]
        length = described.length if isinstance(described, Loader) else None
        last = None if length is None else index + 1 == length
        again = self._routine.expected("batch", described, call.frame, last)
        if again is not None:
            self._draft.batch_at = again.at
            return
        at, callers = spot(call.place)
        self._describe(name, at)
        endless = True if length is None else None
        self._emitter.emit(Batch(at, callers=callers, loader=name, last=last, endless=endless))

    def _describe(self, name: str, at: Location) -> None:
        """Which line takes batches from which kind of loader."""
        self._draft.batch_at = at
        recorder = self._recording.recorder
        if recorder is not None and (name, at) not in self._told:
            self._told.add((name, at))
            known = {
                "kind": "loader",
                "workers": self._numbers.get(name),
                "path": at.path,
                "line": at.line,
            }
            recorder.describe(name, known)

    def _epoch_end(self, call: Exhausted) -> None:
        entry = self._iterators.get(call.iterator)
        if entry is not None:
            entry[1][1] = False
            at, callers = spot(call.place)
            self._emitter.emit(EpochEnd(at, callers=callers, loader=entry[0]))
            self._kept.pass_over()

    def _sampler_made(self, call: SamplerMade) -> None:
        sampler, where = call.sampler, call.place
        self._objects.name(
            "sampler",
            sampler,
            where.at if where else None,
            type=type(sampler).__name__,
            shuffle=bool(getattr(sampler, "shuffle", False)),
        )

    def _sampler_epoch(self, call: SamplerEpochCall) -> None:
        name = self._objects.name("sampler", call.sampler)
        at, callers = spot(call.place)
        self._emitter.emit(SamplerEpoch(at, callers=callers, sampler=name))
