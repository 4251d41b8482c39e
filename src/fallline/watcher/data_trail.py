"""Which data a run reads: the sampler's indices and a fingerprint of every sample, in the updates that are looked at.

Nobody listens in between. Where no DataLoader gives the batches, what the model is called with is looked at instead.
"""

from __future__ import annotations

import os
import weakref
from array import array
from collections import deque
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from fallline.runs.prints import BATCH as BATCH_PRINT
from fallline.runs.prints import INDICES, Print
from fallline.taps.data import BATCH, EPOCH, INDEX, BatchCall, EpochCall, IndexCall
from fallline.taps.modules import FORWARD, ForwardCall
from fallline.taps.tap import Subscription
from fallline.watcher.facts import autocast_dtype
from fallline.watcher.prints import batch_print
from fallline.watcher.progress import Progress

__all__ = ["DataTrail"]

_MOST_BATCHES = 16  # of one loader for one update
_MOST_INDICES = 4096  # of a batch
_MOST_LOADERS = 16
_EPOCHS = 16  # whose first batch is looked at; later every power of two
_FORWARD = "forward"  # the place of a loader, where there is none

Keep = Callable[[Print, Tensor | None], None]


class _Loader:
    def __init__(self, name: str) -> None:
        self.name = name
        self.epochs = 0


class _Pass:
    """One iterator of a loader, while it is listened to. `taken`: indices of batches that are still to come."""

    def __init__(self, loader: _Loader, in_step: bool) -> None:
        self.loader = loader
        self.taken: deque[list[int]] = deque()
        self.in_step = in_step  # every index taken so far was seen


class DataTrail:
    """Of one process."""

    def __init__(self, progress: Progress, keep: Keep, describe: Callable[[str, Any], None]) -> None:  # fmt: skip
        self._progress = progress
        self._keep = keep
        self._describe = describe
        self._pid = os.getpid()
        self._loaders: weakref.WeakKeyDictionary[Any, _Loader] = weakref.WeakKeyDictionary()
        self._passes: weakref.WeakKeyDictionary[Any, _Pass] = weakref.WeakKeyDictionary()
        self._opening: _Loader | None = None  # whose pass begins right now
        self._looks: Subscription | None = None
        self._only_first = False  # listening for the first batch of an epoch alone
        self._given: dict[str, int] = {}  # batches since the last step, by loader
        self._last = ""  # the loader that gave the last one
        self._training: set[str] = set()  # loaders whose batch came last before a step
        self._facts: dict[str, dict[str, Any]] = {}
        self._autocast: str | None = None

    def subscribe(self, taps: Subscription, guarded: Callable[[Callable[[Any], None]], Any]) -> None:  # fmt: skip
        taps.before(EPOCH, guarded(self._epoch_begins))
        taps.after(EPOCH, guarded(self._epoch_begun))
        self._guarded = guarded

    def listen(self) -> None:
        self._only_first = False
        if self._looks is None:
            self._looks = looks = Subscription()
            looks.after(INDEX, self._guarded(self._index))
            looks.after(BATCH, self._guarded(self._batch))
            looks.before(FORWARD, self._guarded(self._forward))
            looks.start()

    def rest(self) -> None:
        looks, self._looks = self._looks, None
        if looks is not None:
            looks.stop()
        self._passes.clear()
        self._given.clear()

    def stepped(self) -> None:
        """The batches that come now are for the next update."""
        if self._last and self._last not in self._training and self._last in self._given:
            self._training.add(self._last)
            if self._last in self._facts:
                self._facts[self._last]["trains"] = True
                self._describe("loaders", {name: dict(f) for name, f in self._facts.items()})
        self._given.clear()

    # -- loaders -------------------------------------------------------------------------------------------------

    def _epoch_begins(self, call: EpochCall) -> None:
        loader = self._loaders.get(call.loader)
        if loader is None:
            if len(self._facts) >= _MOST_LOADERS:
                return
            loader = self._loaders[call.loader] = _Loader(f"loader#{len(self._facts) + 1}")
            self._facts[loader.name] = _facts(call.loader)
            self._describe("loaders", {name: dict(f) for name, f in self._facts.items()})
        epoch, loader.epochs = loader.epochs, loader.epochs + 1
        if self._looks is None and loader.name in self._training:
            if epoch < _EPOCHS or not epoch & (epoch - 1):
                self.listen()
                self._only_first = True
        self._opening = loader
        kept = getattr(call.loader, "_iterator", None)  # with persistent workers
        if kept is not None:
            self._passes.pop(kept, None)

    def _epoch_begun(self, call: EpochCall) -> None:
        loader, self._opening = self._opening, None
        if loader is not None and self._looks is not None and call.iterator not in self._passes:
            self._passes[call.iterator] = _Pass(loader, in_step=True)

    def _pass(self, iterator: Any) -> _Pass | None:
        known = self._passes.get(iterator)
        if known is None and self._opening is not None:
            known = self._passes[iterator] = _Pass(self._opening, in_step=True)
        return known

    def _index(self, call: IndexCall) -> None:
        known = self._pass(call.iterator)
        if known is None or not known.in_step or os.getpid() != self._pid:
            return
        taken = call.index if isinstance(call.index, list | tuple) else [call.index]
        known.taken.append([i for i in taken[:_MOST_INDICES] if isinstance(i, int)])

    def _batch(self, call: BatchCall) -> None:
        known = self._pass(call.iterator) or self._joined(call.iterator)
        if known is None or os.getpid() != self._pid:
            return
        name = known.loader.name
        self._last, number = name, self._given.get(name, 0)
        self._given[name] = number + 1
        indices = known.taken.popleft() if known.taken else []
        if number < _MOST_BATCHES:
            update = self._progress.updates
            if indices:
                self._keep(Print(INDICES, name, update, number, array("d", indices)), None)
            made = batch_print(call.batch)
            if made is not None:
                self._keep(Print(BATCH_PRINT, name, update, number), made)
        if self._only_first:
            self.rest()

    def _joined(self, iterator: Any) -> _Pass | None:
        """A pass that began before we listened: which indices belong to its next batch is not known."""
        for loader, known in self._loaders.items():
            if getattr(loader, "dataset", None) is getattr(iterator, "_dataset", iterator):
                joined = self._passes[iterator] = _Pass(known, in_step=False)
                return joined
        return None

    # -- no loader -----------------------------------------------------------------------------------------------

    def _forward(self, call: ForwardCall) -> None:
        if not torch.is_grad_enabled() or not call.module.training:
            return
        if self._autocast is None:
            device = next((p.device.type for p in call.module.parameters()), "cpu")
            self._autocast = autocast_dtype(device) or "off"
            self._describe("autocast", self._autocast)
        number = self._given.get(_FORWARD, 0)
        if any(name != _FORWARD for name in self._given) or number >= _MOST_BATCHES:
            return
        self._last, self._given[_FORWARD] = _FORWARD, number + 1
        made = batch_print((call.args, call.kwargs))
        if made is not None:
            self._keep(Print(BATCH_PRINT, _FORWARD, self._progress.updates, number), made)


def _facts(loader: Any) -> dict[str, Any]:
    """What decides which samples a loader gives, where that can be asked without running anything of the user's."""
    dataset, sampler = getattr(loader, "dataset", None), getattr(loader, "sampler", None)
    inner = getattr(loader, "batch_sampler", None)
    size = getattr(loader, "batch_size", None) or getattr(inner, "batch_size", None)
    found: dict[str, Any] = {
        "dataset": type(dataset).__name__,
        "batch size": size if isinstance(size, int) else None,
        "sampler": type(sampler).__name__ if sampler is not None else None,
        "drop_last": bool(getattr(loader, "drop_last", False)),
        "workers": getattr(loader, "num_workers", None),
    }
    try:
        found["samples"] = len(dataset)  # type: ignore[arg-type]
    except Exception:  # one without a length
        found["samples"] = None
    return {name: value for name, value in found.items() if value is not None}
