"""The calls in which all ranks have to meet: which, in which order, and how long this rank waits in them.

The wait at the end of a DDP backward is in C++. The gradient of the first parameter is the last that a backward computes, so
what the backward takes after that gradient has arrived is the wait for the others.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from time import perf_counter as now
from typing import Any

from torch.nn.parallel import DistributedDataParallel

from fallline.runs.rank import Meeting
from fallline.taps.backward import BACKWARD, BackwardCall
from fallline.taps.collectives import COLLECTIVE, Collective
from fallline.taps.modules import WRAPPED, ModuleWrapped
from fallline.taps.tap import Subscription
from fallline.watcher.fuse import Fuse

__all__ = ["RECENT", "Collectives"]

KEPT = 64  # of the first, and of the latest
RECENT = 256  # updates whose times count


class Collectives:
    """Of one process."""

    def __init__(self, begin: Callable[[], Any], fuse: Fuse) -> None:
        """`begin`: opens the run folder. A first collective in which a rank hangs must leave its trace."""
        self.count = 0
        self.first: list[Meeting] = []
        self.latest: deque[Meeting] = deque(maxlen=KEPT)
        # seconds, from one backward to the next: at the end of a backward, and in collectives that the code calls
        self.waits: deque[tuple[float, float]] = deque(maxlen=RECENT)
        self._begin = begin
        self._fuse = fuse
        self._started = self._arrived = self._waited = self._met = 0.0
        self._follows: Subscription | None = None  # backward passes, once ranks meet

    def subscribe(self, taps: Subscription, fuse: Fuse) -> None:
        taps.before(COLLECTIVE, fuse.guarded(self._begins))
        taps.after(COLLECTIVE, fuse.guarded(self._ends))
        taps.after(WRAPPED, fuse.guarded(self._wrapped))

    def stop(self) -> None:
        if self._follows is not None:
            self._follows.stop()

    @property
    def met(self) -> list[Meeting]:
        return [*self.first, *self.latest]

    def _follow(self) -> None:
        """Ranks meet from here on."""
        if self._follows is None:
            self._follows = follows = Subscription()
            follows.before(BACKWARD, self._fuse.guarded(self._backward_begins))
            follows.after(BACKWARD, self._fuse.guarded(self._backward_ends))
            follows.start()

    def _begins(self, call: Collective) -> None:
        self._follow()
        self._begin()
        if call.everybody:
            place = call.place
            met = Meeting(self.count, call.what, str(place.at) if place is not None else "")
            (self.first if len(self.first) < KEPT else self.latest).append(met)
            self.count += 1
        self._started = now()

    def _ends(self, call: Collective) -> None:
        self._met += now() - self._started

    def _wrapped(self, call: ModuleWrapped) -> None:
        if isinstance(call.module, DistributedDataParallel):
            self._follow()
            first = next((p for p in call.module.parameters() if p.requires_grad), None)
            if first is not None:
                first.register_post_accumulate_grad_hook(self._gradient_arrived)  # type: ignore[no-untyped-call]

    def _gradient_arrived(self, parameter: Any) -> None:
        self._arrived = now()

    def _backward_begins(self, call: BackwardCall) -> None:
        if not self.waits:
            self._begin()
        self.waits.append((self._waited, self._met))
        self._waited = self._met = self._arrived = 0.0

    def _backward_ends(self, call: BackwardCall) -> None:
        if self._arrived:
            self._waited += now() - self._arrived
