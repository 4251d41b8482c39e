"""The precision of a training script: one of its own updates is run again in every format, where it stands."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from torch import Tensor, nn

from fallline.engine import rng
from fallline.errors import UsageError
from fallline.instruments.precision.device import device_of
from fallline.instruments.precision.probe import probe_run
from fallline.instruments.precision.report import PrecisionReport
from fallline.instruments.script import Observer, Ran, Script, run_until
from fallline.watcher.objects import unwrap
from fallline.watcher.replay import Capture, Gone, as_it_was, prepare

__all__ = ["precision_of_script"]

_MOST_CALLS = 64


def precision_of_script(
    script: Script, *, update: int = 1, timing: bool = True
) -> tuple[PrecisionReport, Ran]:
    """Train up to this update, and run its first micro-batch again in every format before its backward."""
    observer = _Micro(update, timing)
    ran = run_until(script, observer, updates=update)
    if observer.report is None:
        if ran.interrupted:
            raise KeyboardInterrupt
        raise UsageError(
            f"the script {'raised' if ran.error or ran.status else 'ended'} after {ran.updates} updates, before the backward of update "
            f"{update}: there is nothing to measure (--updates chooses an earlier one)"
        )
    return observer.report, ran


class _Micro(Observer):
    """Keeps what the models are called with, and measures at the backward of the update that was asked for."""

    def __init__(self, update: int, timing: bool) -> None:
        self.wanted = update
        self.timing = timing
        self.done = 0
        self.capture: Capture | None = None
        self.random: dict[str, Any] = {}
        self.report: PrecisionReport | None = None

    def update_ends(self, number: int) -> None:
        self.done = number

    def forward_begins(self, model: nn.Module, args: Any, kwargs: Any) -> None:
        if self.done != self.wanted - 1 or self.report is not None:
            return
        if self.capture is None or self.capture.over:
            self.capture, self.random = Capture(None), rng.capture()
        if len(self.capture.calls) < _MOST_CALLS:
            self.capture.add(model, args, kwargs, device_of(list(model.parameters())))

    def backward_begins(self, loss: Any) -> None:
        capture = self.capture
        if self.done != self.wanted - 1 or self.report is not None or capture is None:
            return
        capture.end()
        way = prepare(capture)
        if way.run is None:
            raise UsageError(f"this update cannot be run again: {way.missing}")
        device = device_of([p for m in capture.models for p in m.parameters()])
        self.report = probe_run(self._again, device=device, timing=self.timing)
        if way.way == "modules":
            self.report.notes.append(
                f"the loss is not part of it ({way.missing}): the outputs of the model stood for it"
            )
        self.capture = None

    def _again(self) -> Any:
        assert self.capture is not None
        buffers = _buffers(self.capture)
        with as_it_was(self.capture, SimpleNamespace(off=False, replaying=False)):
            rng.restore(self.random)
            for module, name, buffer in buffers:
                # copies of our own stand for them, in the type of the format
                module._buffers[name] = buffer
            run = prepare(self.capture).run
            assert run is not None
            try:
                return run()
            except Gone:
                raise RuntimeError(
                    "an input of the model is no longer there: it was a result of another computation"
                ) from None


def _buffers(capture: Capture) -> list[tuple[nn.Module, str, Tensor]]:
    return [
        (module, name, buffer)
        for root in capture.models
        for module in unwrap(root).modules()
        for name, buffer in module._buffers.items()
        if buffer is not None
    ]
