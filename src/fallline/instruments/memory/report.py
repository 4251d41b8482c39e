"""What a memory measurement found, as JSON and as text."""

from __future__ import annotations

import linecache
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

from fallline.instruments.frame import human_bytes
from fallline.location import Location
from fallline.show.terminal import counted

if TYPE_CHECKING:
    from fallline.instruments.memory.allocator import Allocator, Fragmentation
    from fallline.instruments.memory.growth import Growth
    from fallline.instruments.memory.remedies import Remedy

__all__ = ["Memory", "OutOfMemory", "explanation"]

_MODULES = 8  # shown
_LINES = 5


@dataclass
class OutOfMemory:
    """Who held the memory when there was none left."""

    message: str
    op: str
    at: Location | None
    module: str
    phase: str
    update: int
    holders: dict[str, int]
    modules: dict[str, int]
    fragmentation: Fragmentation | None = None  # on CUDA


@dataclass
class Memory:
    """What `measure_memory` found. Sizes are bytes on `device`, where the parameters are."""

    device: str
    updates: int
    seconds: float
    partial: bool
    status: int  # the script's own exit status
    before: int  # the highest moment before the first forward
    peak: int
    peak_update: int
    peak_phase: str
    peak_op: str
    peak_at: Location | None
    peak_module: str
    holders: dict[str, int]  # role → bytes at the peak
    activations: int  # when the largest backward began, before it gave any back
    modules: dict[str, int]  # path → bytes of them
    growth: Growth
    remedies: list[Remedy]
    out_of_memory: OutOfMemory | None = None
    applied: str = ""  # the remedy that was in place
    allocator: Allocator | None = None  # on CUDA
    lines: list[tuple[str, int, int]] = field(default_factory=list)  # the allocator's, at its peak

    def to_json(self) -> dict[str, Any]:
        return _as_json(self)

    def text(self) -> str:
        return _as_text(self)


def _as_json(memory: Memory) -> dict[str, Any]:
    growth = memory.growth
    found: dict[str, Any] = {
        "device": memory.device,
        "updates": memory.updates,
        "seconds": round(memory.seconds, 3),
        "partial": memory.partial,
        "status": memory.status,
        "verdict": verdict(memory),
        "before_training": memory.before,
        "peak": {
            "bytes": memory.peak,
            "update": memory.peak_update,
            "phase": memory.peak_phase,
            "op": memory.peak_op,
            "module": memory.peak_module,
            "at": _place(memory.peak_at),
            "holders": memory.holders,
        },
        "activations": {"bytes": memory.activations, "modules": memory.modules},
        "growth": {
            "leaks": growth.leaks,
            "updates": growth.updates,
            "bytes_per_update": growth.per_update,
            "process_bytes_per_update": growth.process,
            "lines": [
                {
                    **(_place(line.at) or {}),
                    "bytes_per_update": line.per_update,
                    "tensors_per_update": line.tensors,
                    "module": line.module,
                }
                for line in growth.lines
            ],
            "graphs_kept": growth.graphs,
            "nodes_per_graph": growth.nodes,
            "loss_at": _place(growth.loss_at),
            "kept_at": _place(growth.kept_at),
            "how": growth.how,
            "holder": growth.holder,
        },
        "remedies": [
            {**asdict(r), "saves": memory.peak - r.peak, "saved": _saved(memory, r.tried)}
            for r in memory.remedies
        ],
        "applied": memory.applied,
        "out_of_memory": None,
    }
    if memory.out_of_memory is not None:
        oom = memory.out_of_memory
        found["out_of_memory"] = {**asdict(oom), "at": _place(oom.at), "text": explanation(oom)}
    if memory.allocator is not None:
        allocator, lies = memory.allocator, memory.allocator.at_peak
        found["allocator"] = {
            "allocated_peak": allocator.allocated_peak,
            "reserved_peak": allocator.reserved_peak,
            "not_seen_by_operations": max(0, allocator.allocated_peak - memory.peak),
            "after_update": allocator.after_update,
            "fragmentation": {**asdict(lies), "share": lies.share} if lies is not None else None,
            "lines_at_peak": [
                {"path": path, "line": line, "bytes": size} for path, line, size in memory.lines
            ],
        }
    return found


def verdict(memory: Memory) -> str:
    """One sentence: the peak, its largest holder, and whether it grows."""
    if not memory.peak:
        return "no tensor was seen"
    largest = max(memory.holders, key=lambda role: memory.holders[role])
    share = memory.holders[largest] / memory.peak
    text = f"the peak of {human_bytes(memory.peak)} is in the {_where(memory)}; {share:.0%} of it is {largest}"
    if memory.growth.leaks:
        text += f", and it grows by {_grows(memory)} per update"
    return text


def _as_text(memory: Memory) -> str:
    lines = [f"memory: {verdict(memory)}."]
    if memory.partial:
        lines.append(f"  partial: the script ended after {counted(memory.updates, 'update')}.")
    elif not memory.updates:
        lines.append("  the script ended without an update (no optimizer's step() was seen).")
    if memory.before > memory.peak:
        lines.append(
            f"  before training it was higher: {human_bytes(memory.before)}, in the script's setup."
        )
    if memory.applied:
        lines.append(f"  measured with {memory.applied} in place.")
    if memory.peak:
        lines += ["", *_holders(memory)]
        lines += ["", *_allocator(memory)] if memory.allocator is not None else []
        lines += ["", *_growth(memory)]
        lines += ["", *_remedies(memory)] if memory.remedies else []
    if memory.out_of_memory is not None:
        lines += ["", explanation(memory.out_of_memory)]
    return "\n".join(lines) + "\n"


def explanation(oom: OutOfMemory) -> str:
    """Who held the memory when it was gone; the note under the script's own traceback."""
    where = f" in {oom.module}" if oom.module else ""
    line = f" ({oom.at.path}:{oom.at.line})" if oom.at is not None else ""
    doing = f"{oom.op}{where}" if oom.op else f"the {oom.phase}{where}"
    total = sum(oom.holders.values())
    lines = [
        f"fallline: no memory for {doing}, in the {_phase(oom.phase)} of update {oom.update}{line}.",
        f"  tensors held {human_bytes(total)}:",
    ]
    for role, size in sorted(oom.holders.items(), key=lambda item: -item[1]):
        if size:
            lines.append(f"    {human_bytes(size):>10}  {size / total:4.0%}  {role}")
    lines += [f"    {' ' * 18}{human_bytes(s)} {_name(m)}" for m, s in _first(oom.modules, 4)]
    lies = oom.fragmentation
    if lies is not None:
        lines.append(
            f"  the allocator had reserved {human_bytes(lies.reserved)}; {human_bytes(lies.free_in_used)} of it was free in pieces, the largest {human_bytes(lies.largest_free or 0)}"
        )
    lines.append(
        "  next: `fallline measure memory` with a batch that fits says what would save how much"
    )
    return "\n".join(lines)


def _holders(memory: Memory) -> list[str]:
    lines = ["what holds the peak"]
    for role, size in sorted(memory.holders.items(), key=lambda item: -item[1]):
        if size:
            lines.append(f"  {human_bytes(size):>10}  {size / memory.peak:4.0%}  {role}")
    if memory.activations:
        lines += ["", f"what the forward keeps for the backward: {human_bytes(memory.activations)}"]
        shown = _first(memory.modules, _MODULES)
        lines += [
            f"  {human_bytes(s):>10}  {s / memory.activations:4.0%}  {_name(m)}" for m, s in shown
        ]
        if len(memory.modules) > _MODULES:
            rest = sum(memory.modules.values()) - sum(s for _, s in shown)
            lines.append(
                f"  {human_bytes(rest):>10}        in {len(memory.modules) - _MODULES} other modules"
            )
    return lines


def _allocator(memory: Memory) -> list[str]:
    allocator = memory.allocator
    assert allocator is not None
    lies = allocator.at_peak
    unseen = max(0, allocator.allocated_peak - memory.peak)
    lines = [
        "the CUDA allocator",
        f"  {human_bytes(allocator.allocated_peak):>10}  allocated at its peak, {human_bytes(unseen)} more than tensors hold (workspaces, rounding, compiled code)",
        f"  {human_bytes(allocator.reserved_peak):>10}  reserved at most",
    ]
    if lies is not None:
        lines.append(
            f"  {human_bytes(lies.reserved - lies.allocated):>10}  reserved and not allocated when a backward began; {human_bytes(lies.free_in_used)} of it ({lies.share:.0%} of what is reserved) lies in pieces beside tensors: fragmentation"
        )
    for path, line, size in memory.lines[:_LINES]:
        place = f"{path}:{line}" if line else path
        lines.append(f"  {human_bytes(size):>10}  allocated at {place}")
    return lines


def _growth(memory: Memory) -> list[str]:
    growth = memory.growth
    if not growth.updates:
        return [f"growth: not measured, {counted(memory.updates, 'update')} are too few"]
    if not growth.leaks:
        return [f"growth: nothing is left behind by {counted(growth.updates, 'update')}"]
    lines = [f"growth: {_grows(memory)} per update are left behind"]
    lines += [
        f"  {human_bytes(line.per_update):>10}  made at {line.at.path}:{line.at.line}  {line.source}"
        for line in growth.lines[:_LINES]
    ]
    if growth.kept_at is not None:
        source = linecache.getline(growth.kept_at.path, growth.kept_at.line).strip()
        lines.append(f"  kept at {growth.kept_at.path}:{growth.kept_at.line}  {source}")
    if growth.holder:
        lines.append(f"  held by `{growth.holder}`")
    if growth.graphs:
        lines.append("  keep the number, not the tensor: loss.item(), or loss.detach()")
    if growth.process is not None and memory.allocator is not None:
        lines.append(f"  {human_bytes(growth.process):>10}  per update, as the allocator counts")
    return lines


def _remedies(memory: Memory) -> list[str]:
    lines = ["what would save how much of the peak     computed       tried"]
    for remedy in memory.remedies:
        saves = memory.peak - remedy.peak
        if remedy.tried is not None:
            tried = _percent(memory.peak - remedy.tried, memory.peak)
        else:
            tried = remedy.problem or "-"
        lines.append(f"  {remedy.name:<36} {_percent(saves, memory.peak):>10}  {tried:>10}")
        if saves > 0.02 * memory.peak:
            lines.append(f"      {remedy.how}; costs {remedy.costs}")
    return lines


def _percent(saves: int, peak: int) -> str:
    return f"{saves / peak:.0%}" if abs(saves) >= 0.005 * peak else "nothing"


def _grows(memory: Memory) -> str:
    growth = memory.growth
    parts = [human_bytes(growth.per_update)] if growth.per_update else []
    if growth.graphs:
        parts.append(f"a graph of {counted(growth.nodes, 'node')}")
    return " and ".join(parts)


def _where(memory: Memory) -> str:
    module = f" of {memory.peak_module}" if memory.peak_module else ""
    line = f" ({memory.peak_at.path}:{memory.peak_at.line})" if memory.peak_at is not None else ""
    return f"{_phase(memory.peak_phase)}{module} of update {memory.peak_update}{line}"


def _phase(phase: str) -> str:
    return {"optimizer": "optimizer step", "between": "code around forward and backward"}.get(
        phase, phase
    )


def _name(module: str) -> str:
    return module or "(outside of modules)"


def _first(sizes: dict[str, int], number: int) -> list[tuple[str, int]]:
    return list(sizes.items())[:number]


def _saved(memory: Memory, tried: int | None) -> int | None:
    return memory.peak - tried if tried is not None else None


def _place(at: Location | None) -> dict[str, Any] | None:
    return None if at is None else {"path": at.path, "line": at.line, "function": at.function}
