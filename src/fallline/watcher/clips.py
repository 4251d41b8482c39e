"""Events of clipping, and the norm that it measures."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from fallline.engine import clipping
from fallline.engine.gradients import Parameters
from fallline.events import Clip
from fallline.taps.clipping import CLIP, ClipCall, tap_clip
from fallline.taps.patches import Patches
from fallline.taps.tap import Subscription
from fallline.watcher.emit import Emitter, spot
from fallline.watcher.fuse import Fuse
from fallline.watcher.guard import Guard
from fallline.watcher.objects import Objects
from fallline.watcher.progress import Draft
from fallline.watcher.routine import Routine
from fallline.watcher.wrappers import Wrappers

__all__ = ["Clips", "tap_engine"]


class Clips:
    """What is clipped, how, and to which norm."""

    def __init__(
        self,
        emitter: Emitter,
        routine: Routine,
        objects: Objects,
        draft: Draft,
        wrappers: Wrappers,
        guard: Guard,
        fuse: Fuse,
    ) -> None:
        self._emitter = emitter
        self._routine = routine
        self._objects = objects
        self._draft = draft
        self._wrappers = wrappers
        self._guard = guard
        self._fuse = fuse
        self._event: Clip | None = None  # of the call in progress

    def subscribe(self, taps: Subscription) -> None:
        taps.before(CLIP, self._begins)
        taps.after(CLIP, self._fuse.guarded(self._ends))

    def _begins(self, call: ClipCall) -> None:
        self._event = None
        if self._fuse.off:
            return
        routine, frame = self._routine, call.frame
        key = ("clip", call.how, id(frame.f_code), frame.f_lasti, self._draft.in_closure)
        if routine.resting and routine.keys[routine.at] == key:
            again = routine.events[routine.at]
            routine.at += 1
            self._event = again if isinstance(again, Clip) else None
        else:
            self._fuse.safely(self._record, call, key)

    def _record(self, call: ClipCall, key: tuple[Any, ...]) -> None:
        self._routine.differs(key)
        listed = [call.parameters] if isinstance(call.parameters, Tensor) else list(call.parameters)
        held = self._objects.as_stepped(listed)
        at, callers = spot(call.place)
        self._event = self._emitter.emit(
            Clip(
                at,
                callers=callers,
                how="norm" if call.how == "norm" else "value",
                threshold=_limit(call.threshold),
                parameter_set=self._objects.parameters(held) if held else None,
                closure=self._draft.in_closure or None,
                empty=not listed or None,
                local_shards=self._wrappers.sharded(listed) or None,
            )
        )

    def _ends(self, call: ClipCall) -> None:
        event, norm = self._event, call.result
        if event is None or call.how != "norm" or not isinstance(norm, Tensor):
            return
        limit = call.threshold if isinstance(call.threshold, int | float) else None
        # the event may be that of an earlier call, with a different threshold
        self._draft.clip = (norm, event.threshold if limit is None else float(limit))
        self._draft.clip_at = event.at
        self._guard.clipped(norm, event)


def _limit(threshold: Any) -> float | None:
    if isinstance(threshold, int | float):
        return float(threshold)
    if isinstance(threshold, Tensor) and threshold.numel() == 1 and threshold.device.type == "cpu":
        return float(threshold)
    return None


def tap_engine(patches: Patches) -> None:
    """`fallline.clip_grad_norm_` is a clip like torch's; it also takes models and optimizers."""
    tap_clip(patches, clipping, "clip_grad_norm_", "norm", "max_norm", _tensors, _in_parts)


def _tensors(parameters: Any) -> tuple[Any, list[Tensor]]:
    if not isinstance(parameters, Tensor | nn.Module | torch.optim.Optimizer):
        parameters = list(parameters)
    return parameters, Parameters.of(parameters).tensors


def _in_parts(kwargs: dict[str, Any]) -> bool:
    """Per group or layer: not one clip."""
    return bool(kwargs.get("per", "all") != "all")
