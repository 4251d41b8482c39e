"""Events of waits for a device, from the user's own lines."""

from __future__ import annotations

from fallline.events import Sync
from fallline.replay.source import over_parameters
from fallline.taps.tap import Subscription
from fallline.taps.waits import WAIT, Wait
from fallline.watcher.emit import Emitter, spot
from fallline.watcher.fuse import Fuse
from fallline.watcher.progress import Progress

__all__ = ["Waits"]

# Every iteration means every one of these; later ones say no more.
LOOKED_AT = 30


class Waits:
    """The host waits in the first updates."""

    def __init__(self, emitter: Emitter, progress: Progress, taps: Subscription) -> None:
        self._emitter = emitter
        self._progress = progress
        self._taps = taps

    def subscribe(self, taps: Subscription, fuse: Fuse) -> None:
        taps.before(WAIT, fuse.guarded(self._waits))

    def stepped(self, updates: int) -> None:
        """Enough was seen: `.item()` costs what it costs in torch from here on."""
        if updates == LOOKED_AT:
            self._taps.leave(WAIT)

    def _waits(self, call: Wait) -> None:
        if self._progress.steps < LOOKED_AT:
            at, callers = spot(call.place)
            per = over_parameters(at) or None
            self._emitter.emit(
                Sync(at, callers=callers, what=call.what, device="cuda", per_parameter=per)
            )
