"""What the device did meanwhile, from a profiler's trace: busy and idle, by phase, copies, communication, and why it was idle.

A kernel belongs to the phase in which the host launched it. A moment at which nothing ran belongs to what the host did then.
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass, field
from typing import Any

from fallline.instruments.timing.clock import OTHER, PHASES

__all__ = ["MARK", "Device", "read_trace"]

MARK = "fallline: "  # in front of a phase's name in the trace
_COMMUNICATION = ("nccl", "gloo:", "c10d::", "ucc:")
Span = tuple[float, float]


@dataclass
class Device:
    """Seconds per update, in the profiled window."""

    updates: int
    window: float  # seconds of one update while the profiler looked
    busy: float = 0.0
    phases: dict[str, float] = field(
        default_factory=dict
    )  # of kernels, by where they were launched
    host_to_device: float = 0.0
    communication: float = 0.0
    exposed_communication: float = 0.0  # nothing else ran meanwhile
    idle: dict[str, float] = field(default_factory=dict)  # by what the host did meanwhile
    kernels: int = 0  # per update
    longest: list[tuple[str, float]] = field(default_factory=list)

    @property
    def idle_share(self) -> float:
        return sum(self.idle.values()) / self.window if self.window else 0.0


def read_trace(trace: dict[str, Any], updates: int) -> Device | None:
    """Read a Chrome trace of torch.profiler that has the marks of a Clock; None when there are none."""
    events = [e for e in trace.get("traceEvents", ()) if e.get("ph") == "X"]
    marks = [(*_span(e), e["name"][len(MARK) :]) for e in events if _is_mark(e)]
    if not marks or not updates:
        return None
    begin = min(m[0] for m in marks)
    end = max(m[1] for m in marks)
    host = _Phases(marks)
    device = Device(updates, (end - begin) / 1e6 / updates)
    kernels = [e for e in events if e.get("cat") in ("kernel", "gpu_memcpy", "gpu_memset")]
    if kernels:
        _device(device, events, kernels, host, begin, end)
    else:
        spans = [_span(e) for e in events if e["name"].lower().startswith(_COMMUNICATION)]
        device.communication = _length(_union(spans)) / 1e6 / updates
    return device


def _device(
    device: Device,
    events: list[dict[str, Any]],
    kernels: list[dict[str, Any]],
    host: _Phases,
    begin: float,
    end: float,
) -> None:
    per_update = 1e6 * device.updates
    launched = {
        e["args"]["correlation"]: e["ts"]
        for e in events
        if e.get("cat") in ("cuda_runtime", "cuda_driver") and "correlation" in e.get("args", {})
    }
    phases: dict[str, float] = {}
    names: dict[str, float] = {}
    communication: list[Span] = []
    computing: list[Span] = []
    for kernel in kernels:
        first, last = _span(kernel)
        phase = host.at(launched.get(kernel.get("args", {}).get("correlation"), first))
        phases[phase] = phases.get(phase, 0.0) + (last - first) / per_update
        names[kernel["name"]] = names.get(kernel["name"], 0.0) + (last - first) / per_update
        if kernel["name"].lower().startswith(_COMMUNICATION):
            communication.append((first, last))
        else:
            computing.append((first, last))
        if "HtoD" in kernel["name"]:
            device.host_to_device += (last - first) / per_update
    busy = _union(communication + computing)
    device.busy = _length(busy) / per_update
    device.phases = phases
    device.communication = _length(_union(communication)) / per_update
    device.exposed_communication = device.busy - _length(_union(computing)) / per_update
    device.kernels = round(len(kernels) / device.updates)
    device.longest = sorted(names.items(), key=lambda item: -item[1])[:10]
    for first, last in _gaps(busy, begin, end):
        for phase, length in host.between(first, last).items():
            device.idle[phase] = device.idle.get(phase, 0.0) + length / per_update


class _Phases:
    """What the host did when: the innermost mark."""

    def __init__(self, marks: list[tuple[float, float, str]]) -> None:
        self.edges: list[float] = []
        self.names: list[str] = []
        points = sorted(
            [(m[0], 1, m[2]) for m in marks] + [(m[1], 0, m[2]) for m in marks],
            key=lambda point: (point[0], point[1]),
        )
        stack: list[str] = []
        for when, opens, name in points:
            if opens:
                stack.append(name)
            elif name in stack:
                stack.reverse()
                stack.remove(name)
                stack.reverse()
            self.edges.append(when)
            self.names.append(stack[-1] if stack else OTHER)

    def at(self, when: float) -> str:
        index = bisect_right(self.edges, when) - 1
        return self.names[index] if index >= 0 else OTHER

    def between(self, first: float, last: float) -> dict[str, float]:
        found: dict[str, float] = {}
        while first < last:
            index = bisect_right(self.edges, first)
            until = min(last, self.edges[index]) if index < len(self.edges) else last
            phase = self.at(first)
            found[phase] = found.get(phase, 0.0) + until - first
            first = until
        return found


def _is_mark(event: dict[str, Any]) -> bool:
    name = event["name"]
    return (
        event.get("cat") == "user_annotation"
        and name.startswith(MARK)
        and name[len(MARK) :] in PHASES
    )


def _span(event: dict[str, Any]) -> Span:
    return event["ts"], event["ts"] + event.get("dur", 0)


def _union(spans: list[Span]) -> list[Span]:
    merged: list[Span] = []
    for first, last in sorted(spans):
        if merged and first <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(last, merged[-1][1]))
        else:
            merged.append((first, last))
    return merged


def _length(spans: list[Span]) -> float:
    return sum(last - first for first, last in spans)


def _gaps(busy: list[Span], begin: float, end: float) -> list[Span]:
    gaps, at = [], begin
    for first, last in busy:
        if first > at:
            gaps.append((at, min(first, end)))
        at = max(at, last)
    if at < end:
        gaps.append((at, end))
    return [(a, b) for a, b in gaps if b > a]
