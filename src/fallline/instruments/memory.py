"""Where the memory of a training script goes: the peak and who holds it, what grows, what each remedy would save."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch

from fallline.event import Location
from fallline.instruments.allocator import Allocator, Fragmentation, lines_at_peak
from fallline.instruments.frame import Progress
from fallline.instruments.growth import Growing, Growth
from fallline.instruments.ledger import ACTIVATIONS, TEMPORARY, Entry, Exhausted, is_out_of_memory
from fallline.instruments.remedies import Remedy, computed, put_in_place
from fallline.instruments.script import Script, run_until

__all__ = ["Memory", "OutOfMemory", "measure_memory"]

_KEPT = "kept from earlier updates"
_BEFORE = "made before training"
_ROLES = (
    "parameters",
    "buffers",
    "gradients",
    "optimizer state",
    "activations",
    "batch",
    "temporary",
    _BEFORE,
    _KEPT,
)


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
        from fallline.instruments.memory_text import as_json

        return as_json(self)

    def text(self) -> str:
        from fallline.instruments.memory_text import as_text

        return as_text(self)


def measure_memory(
    target: Script | str | Callable[[], object],
    *,
    updates: int = 8,
    remedy: str = "",
    progress: Progress | None = None,
) -> Memory:
    """Run a script, or a function that trains, for some updates and account for its memory.

    `remedy` is put in place before: one of `fallline.instruments.remedies.NAMES`. When there is no memory left, the error carries the
    explanation as a note; a script's traceback ends with it, a function's error is raised again.
    """
    if isinstance(target, str):
        target = Script(target)
    observer = _Observer(updates, progress)
    begun = time.monotonic()
    try:
        ran = run_until(
            target,
            observer,
            updates=updates,
            ready=lambda taps, ran: put_in_place(remedy, taps, ran) if remedy else None,
        )
    finally:
        observer.stop()
    if observer.trouble is not None:
        raise observer.trouble
    observer.conclude()
    seconds = time.monotonic() - begun
    if ran.error is not None and not ran.interrupted and not isinstance(target, Script):
        raise ran.error
    device = observer.device()
    account = observer.accounts.get(device)
    peak = account.highest if account is not None else None
    last = peak.last if peak is not None else None
    saved = [entry for entry in observer.saved if entry.device == device]
    allocator = observer.allocator
    return Memory(
        device=device,
        updates=ran.updates,
        seconds=seconds,
        partial=ran.partial,
        status=130 if ran.interrupted else ran.status,
        before=account.before if account is not None else 0,
        peak=peak.size if peak is not None else 0,
        peak_update=peak.update if peak is not None else 0,
        peak_phase=peak.phase if peak is not None else "",
        peak_op=last.op if last is not None else "",
        peak_at=last.at if last is not None else None,
        peak_module=last.module if last is not None else "",
        holders=holders(peak.held, peak.update) if peak is not None else {},
        activations=sum(e.size for e in saved),
        modules=by_module(saved),
        growth=observer.growth,
        remedies=computed(peak, next(iter(ran.models), None), ran.optimizers)
        if peak is not None and ran.updates
        else [],
        out_of_memory=observer.told,
        applied=remedy,
        allocator=allocator if allocator.snapshot is not None else None,
        lines=lines_at_peak(_trace(allocator, device)) if allocator.snapshot is not None else [],
    )


def holders(held: list[Entry], update: int) -> dict[str, int]:
    """Bytes by role; what an earlier update made and what has no lasting role was kept by someone."""
    sizes = dict.fromkeys(_ROLES, 0)
    for entry in held:
        role = entry.role
        if role in (ACTIVATIONS, TEMPORARY) and entry.phase == "setup":
            role = _BEFORE
        elif role in (ACTIVATIONS, TEMPORARY) and entry.update < update:
            role = _KEPT
        sizes[role] += entry.size
    return sizes


def by_module(held: list[Entry]) -> dict[str, int]:
    """Bytes of activations by the path of the module that made them, most first."""
    sizes: dict[str, int] = {}
    for entry in held:
        if entry.role == ACTIVATIONS:
            sizes[entry.module] = sizes.get(entry.module, 0) + entry.size
    return dict(sorted(sizes.items(), key=lambda item: -item[1]))


def _trace(allocator: Allocator, device: str) -> list[dict[str, Any]]:
    traces = allocator.snapshot["device_traces"]
    index = torch.device(device).index or 0
    return list(traces[index]) if index < len(traces) else []


class _Observer(Growing):
    """The ledger, the allocator, and the moment of an out-of-memory error."""

    def __init__(self, updates: int, progress: Progress | None) -> None:
        super().__init__(updates)
        self.allocator = Allocator()
        self.told: OutOfMemory | None = None
        self._progress = progress

    def optimizer_made(self, optimizer: Any) -> None:
        super().optimizer_made(optimizer)
        self.allocator.begin()

    def forward_begins(self, model: Any, args: Any, kwargs: Any) -> None:
        super().forward_begins(model, args, kwargs)
        self.allocator.begin()

    def backward_begins(self, loss: Any) -> None:
        super().backward_begins(loss)
        self.allocator.look()

    def update_ends(self, number: int) -> None:
        super().update_ends(number)
        self.allocator.update_ends()
        if self._progress is not None:
            self._progress.advance(number, "updates")

    def failed(self, error: BaseException) -> None:
        """Explain an error for want of memory, where its traceback ends."""
        if not is_out_of_memory(error):
            return
        moment = self.exhausted
        if moment is None or moment.message != str(error):
            self.out_of_memory(error, "")  # raised by something that is no operation of torch
            moment = self.exhausted
        assert moment is not None
        self.told = explained(moment, error, self.device())
        self.told.fragmentation = self.allocator.exhausted()
        from fallline.instruments.memory_text import explanation

        error.add_note(explanation(self.told))

    def conclude(self) -> None:
        """The update that was not finished counts too."""
        self.settle()
        for account in self.accounts.values():
            account.close()
        self.allocator.end()


def explained(moment: Exhausted, error: BaseException, device: str) -> OutOfMemory:
    held = [entry for entry in moment.held if entry.device == device]
    return OutOfMemory(
        message=str(error).splitlines()[0] if str(error) else type(error).__name__,
        op=moment.op,
        at=moment.at,
        module=moment.module,
        phase=moment.phase,
        update=moment.update,
        holders=holders(held, moment.update),
        modules=by_module(held),
    )
