"""The workers of loaders: whether they yield the same samples, and what their random numbers start from."""

from __future__ import annotations

import weakref
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import IterableDataset

from fallline.taps.data import BatchCall, EpochCall
from fallline.watcher.emit import spot
from fallline.watcher.observed import Observed
from fallline.watcher.recording import Recording

__all__ = ["Workers"]

_LARGEST = 1 << 20


class Workers:
    """Looks at the first batches of loaders with workers; nothing is done for the others."""

    def __init__(self, recording: Recording, observed: Observed) -> None:
        self._recording = recording
        self._observed = observed
        self._first: weakref.WeakKeyDictionary[Any, tuple[int, list[Tensor]]] = (
            weakref.WeakKeyDictionary()
        )
        self.looking = False  # at the first batches of some loader
        self._seeds: dict[str, dict[str, Any]] = {}

    def epoch(self, call: EpochCall) -> None:
        workers = getattr(call.loader, "num_workers", 0)
        if workers < 1:
            return
        if workers > 1 and "FL025" not in self._observed.codes:
            self._first[call.iterator] = (workers, [])
            self.looking = True
        generator = getattr(call.loader, "generator", None)
        if generator is not None and self._recording.world > 1 and call.place is not None:
            at = spot(call.place)[0]
            seed = {"path": at.path, "line": at.line, "function": at.function}
            key = f"{at.path}:{at.line}"
            if key not in self._seeds:
                self._seeds[key] = seed | {"seed": generator.initial_seed()}
                self._recording.open().describe("loader seeds", list(self._seeds.values()))

    def batch(self, call: BatchCall) -> None:
        """The first batches come from the workers in turns: one from each."""
        workers, seen = self._first.get(call.iterator, (0, []))
        tensor = _tensor_in(call.batch)
        if tensor is not None and tensor.is_cpu and tensor.numel() <= _LARGEST:
            seen.append(tensor.detach().clone())
            if len(seen) < workers:
                return
            if len(seen) == workers and _all_same(seen) and call.place is not None:
                indexed = not isinstance(_dataset(call.iterator), IterableDataset)
                # samples of different indices are equal: the workers draw the same random numbers
                facts = {"workers": workers, "drawn": indexed}
                if not indexed or _rows_differ(seen[0]):
                    self._observed.add("FL025", spot(call.place)[0], facts)
        self._first.pop(call.iterator, None)
        self.looking = bool(self._first)


def _tensor_in(batch: Any) -> Tensor | None:
    """The first tensor of a batch."""
    parts = batch.values() if isinstance(batch, dict) else batch
    if isinstance(parts, Tensor):
        return parts
    return (
        next((p for p in parts if isinstance(p, Tensor)), None)
        if isinstance(parts, list | tuple) or parts is not batch
        else None
    )


def _dataset(iterator: Any) -> Any:
    return getattr(iterator, "_dataset", None)


def _rows_differ(batch: Tensor) -> bool:
    """A dataset that gives one sample for every index is a trial, not a slip."""
    return batch.dim() > 0 and len(batch) > 1 and bool((batch != batch[:1]).any())


def _all_same(batches: list[Tensor]) -> bool:
    """Equal, and not just because all samples are."""
    first = batches[0]
    same = all(b.shape == first.shape and bool(torch.equal(b, first)) for b in batches[1:])
    return same and first.numel() > 1 and bool((first != first.reshape(-1)[0]).any())
