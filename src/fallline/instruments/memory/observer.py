"""Observes a run for its memory: the ledger, what grows, the allocator, and the moment at which there was no memory left."""

from __future__ import annotations

from typing import Any

import torch

from fallline.instruments.memory.allocator import Allocator, lines_at_peak
from fallline.instruments.memory.growth import Growing
from fallline.instruments.memory.ledger import (
    ACTIVATIONS,
    TEMPORARY,
    Account,
    Entry,
    Exhausted,
    Peak,
    is_out_of_memory,
)
from fallline.instruments.memory.remedies import Remedy, computed
from fallline.instruments.memory.report import Memory, OutOfMemory, explanation
from fallline.instruments.script import Ran

__all__ = ["MemoryObserver"]

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


class MemoryObserver(Growing):
    """The ledger, the allocator, and the moment of an out-of-memory error."""

    def __init__(self, updates: int) -> None:
        super().__init__(updates)
        self.allocator = Allocator()
        self.told: OutOfMemory | None = None

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

    def failed(self, error: BaseException) -> None:
        """Explain an error for want of memory, where its traceback ends."""
        if not is_out_of_memory(error):
            return
        moment = self.exhausted
        if moment is None or moment.message != str(error):
            self.out_of_memory(error, "")  # raised by something that is not an operation of torch
            moment = self.exhausted
        assert moment is not None
        self.told = explained(moment, error, self.device())
        self.told.fragmentation = self.allocator.exhausted()
        error.add_note(explanation(self.told))

    def concluded(self, ran: Ran, seconds: float, remedy: str) -> Memory:
        """What was found; the update that was not finished counts too."""
        if self.trouble is not None:
            raise self.trouble
        self.settle()
        for account in self.accounts.values():
            account.close()
        self.allocator.end()
        device = self.device()
        account = self.accounts.get(device, Account())
        peak, last = account.highest, account.highest.last
        saved = [entry for entry in self.saved if entry.device == device]
        snapshot = self.allocator.snapshot
        return Memory(
            device=device,
            updates=ran.updates,
            seconds=seconds,
            partial=ran.partial,
            status=130 if ran.interrupted else ran.status,
            before=account.before,
            peak=peak.size,
            peak_update=peak.update,
            peak_phase=peak.phase,
            peak_op=last.op if last is not None else "",
            peak_at=last.at if last is not None else None,
            peak_module=last.module if last is not None else "",
            holders=holders(peak.held, peak.update),
            activations=sum(e.size for e in saved),
            modules=by_module(saved),
            growth=self.growth,
            remedies=_remedies(peak, ran) if ran.updates else [],
            out_of_memory=self.told,
            applied=remedy,
            allocator=self.allocator if snapshot is not None else None,
            lines=lines_at_peak(_trace(snapshot, device)) if snapshot is not None else [],
        )


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


def _remedies(peak: Peak, ran: Ran) -> list[Remedy]:
    found = computed(peak, next(iter(ran.models), None), ran.optimizers)
    if not any(isinstance(loader.batch_size, int) for loader in ran.loaders):
        for remedy in found:
            if remedy.name == "micro-batch":
                remedy.problem = "not tried: no DataLoader makes the batches"
    return found


def _trace(snapshot: Any, device: str) -> list[dict[str, Any]]:
    traces = snapshot["device_traces"]
    index = torch.device(device).index or 0
    return list(traces[index]) if index < len(traces) else []
