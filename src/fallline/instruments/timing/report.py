"""What a time measurement found, as JSON and as text: the verdict in one sentence, and what to measure next."""

from __future__ import annotations

import linecache
import statistics
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

from fallline.instruments.frame import human_seconds
from fallline.instruments.timing.clock import (
    AHEAD,
    BACKWARD,
    COPY,
    DATA,
    FORWARD,
    OPTIMIZER,
    OTHER,
    STALL,
    Stall,
)
from fallline.location import Location

if TYPE_CHECKING:
    from fallline.instruments.timing.device_trace import Device
    from fallline.instruments.timing.loader import Loading, Trial

__all__ = ["Compiled", "Timing", "verdict"]

_BUSY = 0.8  # a device that works so much of the time is the limit itself
_INPUT = 0.25  # share of an update spent waiting for data that makes it the thing to change
_EXPOSED = 0.2  # share of communication with nothing beside it, on a device
_TALKING = 0.3  # share of communication on the CPU, where it is not known what ran beside it
_LINES = 4


@dataclass
class Compiled:
    """What torch.compile has done so far."""

    graphs: int = 0
    recompiles: int = 0
    reasons: list[str] = field(default_factory=list)  # of the recompiles
    breaks: dict[str, int] = field(default_factory=dict)  # graph breaks by reason
    in_window: int = 0  # graphs compiled while we measured


@dataclass
class Timing:
    """What `measure_time` found. Times are seconds per update."""

    device: str
    updates: int  # that the script did
    window: int  # that were measured by the clock
    partial: bool
    status: int
    phases: dict[str, float]
    seconds: list[float]  # of each update in the window
    micro_batches: float  # per update
    stalls: list[Stall]
    lines: list[tuple[str, Any, float]]  # (phase, line, share of the window)
    on_device: Device | None
    loading: Loading | None
    compiled: Compiled
    trace: bytes | None = None

    @property
    def per_update(self) -> float:
        return sum(self.phases.values())

    def share(self, phase: str) -> float:
        return self.phases.get(phase, 0.0) / self.per_update if self.per_update else 0.0

    @property
    def median(self) -> float:
        return statistics.median(self.seconds) if self.seconds else 0.0

    def to_json(self) -> dict[str, Any]:
        return _as_json(self)

    def text(self) -> str:
        return _as_text(self)


class Verdict(NamedTuple):
    kind: str  # "input" | "device" | "compute" | "stall" | "host" | "copies" | "communication" | "optimizer" | "compiling" | "unknown"
    share: float
    text: str
    next: str


def verdict(timing: Timing) -> Verdict:
    if not timing.window:
        return Verdict(
            "unknown", 0.0, "no update was measured", "let it run until a few updates are done"
        )
    if timing.compiled.in_window:
        return Verdict(
            "compiling",
            0.0,
            f"still compiling: {timing.compiled.in_window} graphs were compiled while it was measured",
            "fallline measure time with more --updates, and the reasons for the recompiles below",
        )
    device = timing.on_device
    if device is not None and device.kernels:
        return _on_device(timing, device)
    return _on_host(timing)


def _on_host(timing: Timing) -> Verdict:
    data, other = timing.share(DATA), timing.share(OTHER)
    compute = timing.share(FORWARD) + timing.share(BACKWARD)
    optimizer = timing.share(OPTIMIZER)
    profiled = timing.on_device
    talking = profiled.communication / profiled.window if profiled is not None else 0.0
    if data >= _INPUT:
        return _input(timing, data)
    if talking >= _TALKING:
        return Verdict(
            "communication",
            talking,
            f"communication-bound: collectives run during {talking:.0%} of an update",
            "fallline measure ranks: bandwidth, stragglers, and what no_sync would gain",
        )
    if other > max(compute, optimizer):
        line = _hottest(timing, OTHER)
        return Verdict(
            "host",
            other,
            f"host-bound: {_of(timing, other)} is in code around forward, backward and step{line}",
            "the trace (--out) shows that code; a profiler of Python (py-spy) its functions",
        )
    if optimizer > compute:
        return Verdict(
            "optimizer",
            optimizer,
            f"optimizer-bound: {_of(timing, optimizer)} is in the step",
            "fused=True or foreach=True in the optimizer, then fallline measure time again",
        )
    return Verdict(
        "compute",
        compute,
        f"compute-bound: {_of(timing, compute)} is forward and backward",
        "fallline measure precision: what a smaller type would cost and gain here",
    )


def _on_device(timing: Timing, device: Device) -> Verdict:
    idle = device.idle_share
    exposed = device.exposed_communication / device.window if device.window else 0.0
    if exposed >= _EXPOSED:
        return Verdict(
            "communication",
            exposed,
            f"communication-bound: {exposed:.0%} of an update is communication with nothing beside it",
            "fallline measure ranks: bandwidth, stragglers, and what no_sync would gain",
        )
    if 1 - idle >= _BUSY:
        return Verdict(
            "device",
            1 - idle,
            f"device-bound: the device works {1 - idle:.0%} of the time ({_split(device)})",
            "fallline measure precision: measured speed-up of bf16 and the alignment of every matmul",
        )
    cause = max(device.idle, key=lambda phase: device.idle[phase])
    share = device.idle[cause] / device.window
    if cause == DATA:
        return _input(timing, share)
    if cause == COPY:
        return Verdict(
            "copies",
            share,
            f"bound by copies: the device idles {idle:.0%} of the time, {share:.0%} while the host copies batches to it",
            "pin_memory=True and .to(device, non_blocking=True), then fallline measure time again",
        )
    launching = timing.per_update - sum(timing.phases.get(p, 0.0) for p in (STALL, DATA, AHEAD))
    if timing.stalls and launching < device.busy + timing.phases.get(STALL, 0.0):
        stall = timing.stalls[0]
        return Verdict(
            "stall",
            idle,
            f"stalled by {stall.what} at {_shown(stall.at)}: the device idles {idle:.0%} of the time while the host, which waited {human_seconds(stall.seconds)} per update for it, asks for more",
            "do it every hundredth update, or keep the tensor and read it later; then fallline measure time again",
        )
    compiling = (
        "mode='reduce-overhead' in torch.compile"
        if timing.compiled.graphs
        else "torch.compile(model)"
    )
    return Verdict(
        "host",
        idle,
        f"host-bound: the device idles {idle:.0%} of the time while the host launches {device.kernels} kernels per update",
        f"{compiling}, a larger batch, or fused=True in the optimizer; then fallline measure time again",
    )


def _input(timing: Timing, share: float) -> Verdict:
    text = f"input-bound: {_of(timing, share)} waits for the loader"
    after = "profile the dataset's __getitem__ and the collate function"
    loading = timing.loading
    if loading is not None and loading.best is not None and loading.now is not None:
        best, now = loading.best, loading.now
        if best is not now and (best.wait or 0.0) < 0.9 * (now.wait or 0.0):
            after = f"{_way(best)} in the DataLoader ({_waits(best)} instead of {_waits(now)}, measured), then fallline measure time again"
        else:
            after = f"no other number of workers waits less than now ({_waits(now)}), so {after}"
    return Verdict("input", share, text, after)


def _as_json(timing: Timing) -> dict[str, Any]:
    said = verdict(timing)
    device = timing.on_device
    loading = timing.loading
    return {
        "device": timing.device,
        "updates": timing.updates,
        "window": timing.window,
        "partial": timing.partial,
        "status": timing.status,
        "verdict": {"kind": said.kind, "share": said.share, "text": said.text},
        "next": said.next,
        "seconds_per_update": timing.per_update,
        "median_seconds": timing.median,
        "slowest_seconds": max(timing.seconds, default=0.0),
        "micro_batches_per_update": timing.micro_batches,
        "phases": timing.phases,
        "shares": {phase: timing.share(phase) for phase in timing.phases},
        "stalls": [
            {**_place(s.at), "what": s.what, "count": s.count, "seconds": s.seconds}
            for s in timing.stalls
        ],
        "lines": [{**_place(at), "phase": p, "share": share} for p, at, share in timing.lines],
        "profiled": {**asdict(device), "idle_share": device.idle_share}
        if device is not None
        else None,
        "loader": {**asdict(loading), "best": asdict(loading.best) if loading.best else None}
        if loading is not None
        else None,
        "compiled": asdict(timing.compiled),
    }


def _as_text(timing: Timing) -> str:
    said = verdict(timing)
    lines = [f"time: {said.text}.", f"  next: {said.next}"]
    if timing.partial:
        lines.append(
            f"  partial: the script ended after {timing.updates} updates, {timing.window} of them measured."
        )
    if timing.window:
        slowest = human_seconds(max(timing.seconds))
        lines += [
            "",
            f"one update takes {human_seconds(timing.per_update)} (the slowest of {timing.window}: {slowest}); the host spends it in",
        ]
        for phase, seconds in sorted(timing.phases.items(), key=lambda item: -item[1]):
            lines.append(f"  {human_seconds(seconds):>10}  {timing.share(phase):4.0%}  {phase}")
            if phase == COPY and timing.share(phase) >= 0.1:
                lines.append(
                    f"{'':>20}(a copy from memory that is not pinned waits for all earlier work)"
                )
            if phase in (OTHER, DATA) and timing.share(phase) >= 0.1:
                lines += _lines(timing, phase)
    lines += _device_text(timing)
    lines += _stalls_text(timing)
    lines += _loader_text(timing)
    lines += _compiled_text(timing)
    return "\n".join(lines) + "\n"


def _device_text(timing: Timing) -> list[str]:
    device = timing.on_device
    if device is None or not (device.kernels or device.communication):
        return []
    if not device.kernels:
        return ["", f"communication: {human_seconds(device.communication)} per update"]
    share = device.busy / device.window if device.window else 0.0
    lines = [
        "",
        f"the device, under the profiler ({human_seconds(device.window)} per update, {device.kernels} kernels)",
        f"  {human_seconds(device.busy):>10}  {share:4.0%}  busy: {_split(device)}",
    ]
    for phase, seconds in sorted(device.idle.items(), key=lambda item: -item[1]):
        if seconds >= 0.01 * device.window:
            lines.append(
                f"  {human_seconds(seconds):>10}  {seconds / device.window:4.0%}  idle, while the host is in: {phase}"
            )
    if device.host_to_device:
        lines.append(f"  {human_seconds(device.host_to_device):>10}        copies from the host")
    if device.communication:
        lines.append(
            f"  {human_seconds(device.communication):>10}        communication, {human_seconds(device.exposed_communication)} of it with nothing beside it"
        )
    return lines


def _stalls_text(timing: Timing) -> list[str]:
    if not timing.stalls:
        return []
    return [
        "",
        "the host waits for the device",
        *(
            f"  {human_seconds(stall.seconds):>10}  {stall.count} per update  {stall.what} at {_shown(stall.at)}  {_source(stall.at)}"
            for stall in timing.stalls[:_LINES]
        ),
    ]


def _loader_text(timing: Timing) -> list[str]:
    loading = timing.loading
    if loading is None:
        return []
    if loading.problem:
        return ["", f"the loader: {loading.problem}"]
    lines = ["", f"the loader, tried with batches of {loading.batch_size}: wait per batch"]
    best = loading.best
    for trial in sorted(loading.tried, key=lambda t: (t.num_workers, t.pin_memory)):
        notes = [
            n for n, is_it in (("now", trial is loading.now), ("best", trial is best)) if is_it
        ]
        note = f"  <- {', '.join(notes)}" if notes else ""
        lines.append(f"  {_waits(trial):>10}  {_way(trial)}{note}")
    return lines


def _compiled_text(timing: Timing) -> list[str]:
    compiled = timing.compiled
    if not compiled.graphs:
        return []
    breaks = sum(compiled.breaks.values())
    lines = [
        "",
        f"torch.compile: {compiled.graphs} graphs, {breaks} graph breaks, {compiled.recompiles} recompiles, {compiled.in_window} compiled while measuring",
    ]
    lines += [f"  break ({n}): {why}" for why, n in list(compiled.breaks.items())[:_LINES]]
    lines += [f"  recompile: {why}" for why in compiled.reasons[:_LINES]]
    return lines


def _of(timing: Timing, share: float) -> str:
    total = timing.per_update
    return f"{share:.0%} of an update ({human_seconds(share * total)} of {human_seconds(total)})"


def _split(device: Device) -> str:
    parts = sorted(device.phases.items(), key=lambda item: -item[1])[:4]
    return ", ".join(f"{phase} {human_seconds(seconds)}" for phase, seconds in parts)


def _hottest(timing: Timing, phase: str) -> str:
    found = next((at for p, at, _ in timing.lines if p == phase), None)
    return f", most of it at {_shown(found)}" if found is not None else ""


def _lines(timing: Timing, phase: str) -> list[str]:
    found = [(at, share) for p, at, share in timing.lines if p == phase][:_LINES]
    return [
        f"{'':>14}{share:4.0%}  {_shown(at)}  {_source(at)}" for at, share in found if share >= 0.02
    ]


def _way(trial: Trial) -> str:
    return f"num_workers={trial.num_workers}, pin_memory={trial.pin_memory}"


def _waits(trial: Trial) -> str:
    if trial.wait is None:
        return trial.problem or "not measured"
    return human_seconds(trial.wait + (trial.copy or 0.0))


def _shown(at: Location) -> str:
    return f"{at.path}:{at.line}"


def _source(at: Location) -> str:
    return linecache.getline(at.path, at.line).strip()


def _place(at: Location) -> dict[str, Any]:
    return {"path": at.path, "line": at.line}
