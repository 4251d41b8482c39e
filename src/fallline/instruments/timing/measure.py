"""Where the time of a training script goes: a window by the clock, then a shorter one under torch.profiler.

The clock costs next to nothing, so shares come from its window; what the device did and why it was idle comes from the profiler's.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from fallline.instruments.frame import Progress
from fallline.instruments.script import NothingMeasured, Ran, Script, run_until
from fallline.instruments.timing.clock import DATA, Clock, Stall, tap_copies, tap_stalls
from fallline.instruments.timing.device_trace import MARK, Device, read_trace
from fallline.instruments.timing.report import Compiled, Timing
from fallline.taps.patches import Patches

if TYPE_CHECKING:
    import torch

    from fallline.instruments.timing.loader import Loading

__all__ = ["Timing", "measure_time"]

_WORTH = 0.02  # of an update: a loader that is waited for less has nothing to gain


def measure_time(
    target: Script | str | Callable[[], object],
    *,
    updates: int = 20,
    loader_for: float = 20.0,
    progress: Progress | None = None,
) -> Timing:
    """Run a script, or a function that trains, for some updates and say where their time goes.

    `loader_for`: seconds for trying other ways to load, where the loader is waited for; 0 tries none. A function's error is raised again.
    """
    if isinstance(target, str):
        target = Script(target)
    observer = _Observer(updates, loader_for, progress)
    try:
        ran = run_until(target, observer, updates=updates, ready=observer.tap, progress=progress)
    finally:
        observer.end()
    if ran.error is not None and not ran.interrupted and not isinstance(target, Script):
        raise ran.error
    if isinstance(target, Script) and not observer.updates and not ran.interrupted:
        raise NothingMeasured(ran, "before the window that is measured")
    count = max(1, len(observer.updates))
    looks = sum(observer.lines.values()) or 1
    return Timing(
        device=str(observer.device or "cpu"),
        updates=ran.updates,
        window=len(observer.updates),
        partial=ran.partial or ran.interrupted or not observer.updates,
        status=130 if ran.interrupted else ran.status,
        phases={p: s / count for p, s in observer.spent.items() if s},
        seconds=observer.updates,
        micro_batches=observer.batches / count,
        stalls=[_per_update(s, count) for s in _largest(observer.stalls.values())],
        lines=[(p, at, n / looks) for (p, at), n in observer.lines.most_common(12)],
        on_device=observer.profiled.device,
        loading=observer.loading,
        compiled=observer.compiled,
        trace=observer.profiled.trace,
    )


def _largest(stalls: Any) -> list[Stall]:
    return sorted(stalls, key=lambda s: -s.seconds)


def _per_update(stall: Stall, updates: int) -> Stall:
    stall.count, stall.seconds = round(stall.count / updates), stall.seconds / updates
    return stall


class _Profiled:
    """The window under torch.profiler: what the device did, and why it was idle."""

    def __init__(self) -> None:
        self.device: Device | None = None
        self.trace: bytes | None = None
        self.going = False
        self.updates = 0
        self._profiler: Any = None

    def prepare(self) -> None:
        import torch
        from torch.profiler import ProfilerActivity, profile

        kinds = [ProfilerActivity.CPU]
        if torch.cuda.is_available():
            kinds.append(ProfilerActivity.CUDA)
        self._profiler = profile(activities=kinds)
        self._profiler.prepare_trace()

    def start(self) -> None:
        self._profiler.start_trace()
        self.going = True

    def stop(self) -> None:
        if self.going:
            self.going = False
            self._profiler.stop_trace()
            self._read()
        self._profiler = None

    def _read(self) -> None:
        handle, path = tempfile.mkstemp(suffix=".json")
        os.close(handle)
        try:
            self._profiler.export_chrome_trace(path)
            with open(path, "rb") as file:
                self.trace = file.read()
        finally:
            os.unlink(path)
        self.device = read_trace(json.loads(self.trace), max(1, self.updates))


class _Observer(Clock):
    """Warm-up, the clock's window, the profiler's window."""

    def __init__(self, updates: int, loader_for: float, progress: Progress | None) -> None:
        super().__init__()
        self.profiled = _Profiled()
        self.loading: Loading | None = None
        self.compiled = Compiled()
        self.device: torch.device | None = None
        self._loader_for = loader_for
        self._progress = progress
        # the first updates compile, tune and allocate; the profiler needs one to get ready
        profiled = max(1, updates // 6)
        self._begin = max(1, updates // 5) if updates > 2 else 0
        self._ready = max(self._begin + 1, updates - profiled - 1)
        self._start = self._ready + 1
        if self._begin == 0:
            self.begin()

    def tap(self, taps: Patches, ran: Ran) -> None:
        import torch

        if torch.cuda.is_available():
            tap_stalls(taps, lambda: self)
            tap_copies(taps, lambda: self)

    def forward_begins(self, model: Any, args: Any, kwargs: Any) -> None:
        super().forward_begins(model, args, kwargs)
        if self.device is None or self.device.type == "cpu":
            self.device = next((p.device for p in model.parameters()), self.device)

    def update_ends(self, number: int) -> None:
        if number in (self._begin, self._ready, self._start):
            self.finish_device()  # or the work of earlier updates would run in the window
        super().update_ends(number)
        if number == self._begin:
            self._compiled_before = _compiles().graphs
            self.begin()
        elif number == self._ready:
            self._close()
            self.profiled.prepare()
        elif number == self._start:
            self._trace()
        elif self.profiled.going:
            self.profiled.updates += 1

    def _close(self) -> None:
        if self.on:
            before = getattr(self, "_compiled_before", 0)
            self.compiled = _compiles()
            self.compiled.in_window = self.compiled.graphs - before
        self.end()

    def _trace(self) -> None:
        from torch.profiler import record_function

        self.profiled.start()
        self.mark = lambda phase: record_function(MARK + phase)

    def end(self) -> None:
        super().end()
        self.mark = None
        self.profiled.stop()

    def ended(self, ran: Ran) -> None:
        """The script is over, its dataset is still there."""
        if self.profiled.going:
            self.finish_device()
        self._close()
        count = len(self.updates)
        total = sum(self.spent.values())
        if not count or not ran.loaders or not self._loader_for or ran.partial:
            return
        if self.device is None or self._waits_for_data() < _WORTH:
            return
        from fallline.instruments.timing.loader import try_loader

        compute = (total - self.spent[DATA]) / max(1, self.batches)
        self.loading = try_loader(
            ran.loaders[0], compute, self.device, self._loader_for, self._progress
        )
        ran.interrupted |= self.loading.interrupted

    def _waits_for_data(self) -> float:
        """Share of an update; what the device uses to catch up is not a wait."""
        device = self.profiled.device
        if device is not None and device.kernels:
            return device.idle.get(DATA, 0.0) / device.window
        return self.spent[DATA] / sum(self.spent.values())


def _compiles() -> Compiled:
    """torch's own counters, where anything was compiled."""
    if "torch._dynamo.utils" not in sys.modules:
        return Compiled()
    from torch._dynamo import utils

    found = Compiled(graphs=int(utils.counters["stats"]["unique_graphs"]))
    for reason, number in utils.counters["graph_break"].items():
        first = str(reason).strip().splitlines()[0]
        found.breaks[first] = found.breaks.get(first, 0) + int(number)
    for metrics in utils.get_compilation_metrics():
        why = getattr(metrics, "recompile_reason", None)
        if why:
            found.recompiles += 1
            found.reasons.append(str(why).splitlines()[0])
    return found
