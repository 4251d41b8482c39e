"""Frameworks that train by an engine of their own (DeepSpeed): what it knows about an update that its optimizer does not show."""

from __future__ import annotations

import math

from torch import Tensor

from fallline.taps.deepspeed import ENGINE_BACKWARD, ENGINE_STEP, EngineBackward, EngineStep
from fallline.taps.tap import Subscription
from fallline.watcher.fuse import Fuse
from fallline.watcher.guard import Guard
from fallline.watcher.origin import Origin
from fallline.watcher.progress import Draft, Given

__all__ = ["Engines"]


class Engines:
    """Into the draft of the update in progress: the loss as it was given, the norm over all ranks, the loss scale."""

    def __init__(self, draft: Draft, guard: Guard, origin: Origin) -> None:
        self._draft = draft
        self._guard = guard
        self._origin = origin

    def subscribe(self, taps: Subscription, fuse: Fuse) -> None:
        taps.before(ENGINE_BACKWARD, fuse.guarded(self._backward))
        taps.after(ENGINE_STEP, fuse.guarded(self._stepped))

    def _backward(self, call: EngineBackward) -> None:
        self._origin.engine_scales = call.scales
        if isinstance(call.loss, Tensor):
            self._draft.given = Given(call.loss, call.window)

    def _stepped(self, call: EngineStep) -> None:
        draft = self._draft
        draft.scale, draft.rate = call.scale, call.rate
        norm = call.norm if call.norm is None or isinstance(call.norm, Tensor) else float(call.norm)
        if norm is not None and (isinstance(norm, Tensor) or math.isfinite(norm)):
            draft.clip = (norm, call.threshold)
            self._guard.norm = None  # of this rank's part, after clipping
