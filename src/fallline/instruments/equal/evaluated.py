"""Hears what an evaluation comes to, in a run where every sample is the same one.

With one sample everywhere, any right mean over any batches is the loss of that sample, so the number that an evaluation logs can be
held against the loss that is trained, however it was averaged. The step does nothing meanwhile: both see the same parameters.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

from torch import Tensor

from fallline.instruments.equal.loaders import number_of
from fallline.instruments.equal.record import Recorder
from fallline.taps.data import EXHAUSTED, Exhausted
from fallline.taps.frames import shown_path, user_frames
from fallline.taps.on_import import after_import
from fallline.taps.optimizers import ClosureCall
from fallline.taps.patches import Patches, Wrapped
from fallline.taps.tap import Subscription

__all__ = ["AMONG_RETURNED", "RETURNED", "EvaluationRecorder"]

RETURNED, AMONG_RETURNED = "what it returns", "one of what it returns"
_LINES = 60  # of the code after an evaluation loop, in which its result is looked for
Logged = tuple[str, float, str, int]


class EvaluationRecorder(Recorder):
    """Until a loss has gone backward and an evaluation has come to its end."""

    def __init__(self, met: set[str], loader: int) -> None:
        super().__init__(met)
        self._training = loader
        self._ends = Subscription()
        self._ends.after(EXHAUSTED, self._evaluated)
        self._tracer: _Tracer | None = None

    def started(self) -> None:
        super().started()
        self._ends.start()

    def stop(self) -> None:
        super().stop()
        self._ends.stop()
        self._take()

    def _take(self) -> None:
        if self._tracer is not None:
            self._tracer.stop()
            self.record.logged += self._tracer.found
            self._tracer = None

    def _evaluated(self, call: Exhausted) -> None:
        if number_of(call.iterator) == self._training:
            return
        self._take()
        frames = user_frames(call.frame)
        if frames:
            self._tracer = _Tracer(frames[:3])

    def logs(self, name: str, value: Any) -> None:
        """A framework has logged this."""
        number = _number(value)
        if number is not None and "loss" in name:
            self.record.logged.append((name, number, "", 0))

    def watch_frameworks(self, patches: Patches) -> None:
        after_import("transformers.trainer", lambda: self._patch_evaluate(patches))
        for name in ("lightning.pytorch", "pytorch_lightning"):
            after_import(name, lambda module=name: self._patch_log(patches, module))  # type: ignore[misc]

    def _patch_evaluate(self, patches: Patches) -> None:
        def make(original: Wrapped) -> Wrapped:
            def evaluate(trainer: Any, *args: Any, **kwargs: Any) -> Any:
                metrics = original(trainer, *args, **kwargs)
                for name, value in metrics.items():
                    self.logs(name, value)
                return metrics

            return evaluate

        patches.patch(sys.modules["transformers.trainer"].Trainer, "evaluate", make)

    def _patch_log(self, patches: Patches, module: str) -> None:
        def make(original: Wrapped) -> Wrapped:
            def log(model: Any, name: str, value: Any, *args: Any, **kwargs: Any) -> Any:
                if not model.training:
                    self.logs(name, value)
                return original(model, name, value, *args, **kwargs)

            return log

        patches.patch(sys.modules[module].LightningModule, "log", make)

    def batch_begins(self, iterator: Any) -> None:
        self._end_when_known()

    def forward_begins(self, model: Any, args: Any, kwargs: Any) -> None:
        super().forward_begins(model, args, kwargs)
        self._end_when_known()

    def _end_when_known(self) -> None:
        """The evaluation's code has run on to the next batch."""
        heard = self.record.logged or (self._tracer is not None and self._tracer.found)
        if heard and self.record.backwards:
            self.over = True

    def step_begins(self, optimizer: Any) -> None:
        _clear(optimizer)

    def _closure_ends(self, call: ClosureCall) -> None:
        _clear(call.optimizer)

    def step_ends(self, optimizer: Any) -> None:
        self.record.stepped = True


def _clear(optimizer: Any) -> None:
    """A step without gradients leaves parameters as they are."""
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            parameter.grad = None


class _Tracer:
    """Notes numbers that change in the frames that run on after an evaluation loop, and what they return."""

    def __init__(self, frames: list[FrameType]) -> None:
        self.found: list[Logged] = []
        self._left = _LINES
        self._before = sys.gettrace()
        self._seen: dict[int, dict[str, float]] = {}
        for frame in frames:
            self._seen[id(frame)] = _numbers(frame.f_locals)
            frame.f_trace = self._trace
            frame.f_trace_lines = True
        sys.settrace(_nothing)

    def stop(self) -> None:
        sys.settrace(self._before)

    def _trace(self, frame: FrameType, event: str, value: Any) -> Callable[..., Any] | None:
        self._left -= 1
        if self._left < 0:
            self.stop()
            return None
        now, before = _numbers(frame.f_locals), self._seen.get(id(frame), {})
        for name, number in now.items():
            if before.get(name) != number:
                self._note(name, number, frame)
        self._seen[id(frame)] = now
        if event == "return" and any("loss" in name.lower() for name in frame.f_locals):
            for name, number in _returned(value):
                self._note(name, number, frame)
        return self._trace

    def _note(self, name: str, number: float, frame: FrameType) -> None:
        self.found.append((name, number, shown_path(frame.f_code.co_filename), frame.f_lineno))


def _nothing(frame: FrameType, event: str, value: Any) -> None:
    return None


def _numbers(names: Any) -> dict[str, float]:
    found = {}
    for name, value in list(names.items()):
        if "loss" in name.lower() and (number := _number(value)) is not None:
            found[name] = number
    return found


def _number(value: Any) -> float | None:
    if isinstance(value, bool):
        return None
    if isinstance(value, Tensor):
        if value.numel() != 1 or not value.is_floating_point():
            return None
        value = float(value.detach())
    elif hasattr(value, "dtype") and hasattr(value, "item") and getattr(value, "size", 0) == 1:
        value = float(value.item())
    return float(value) if isinstance(value, int | float) and math.isfinite(value) else None


def _returned(value: Any) -> list[tuple[str, float]]:
    if (number := _number(value)) is not None:
        return [(RETURNED, number)]
    if isinstance(value, dict):
        return [
            (str(n), v)
            for n, x in value.items()
            if "loss" in str(n) and (v := _number(x)) is not None
        ]
    if isinstance(value, tuple):
        return [(AMONG_RETURNED, v) for x in value if (v := _number(x)) is not None]
    return []
