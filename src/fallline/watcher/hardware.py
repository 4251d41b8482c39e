"""`--check-hardware N`: every N updates this rank computes a micro-batch again, and looks whether its memory kept what was in it.

A processor that computes the same twice and a memory that keeps what was written show nothing here. What one rank sees is written
down; who compares the ranks is whoever reads the run (FL325). The run itself is not changed: the micro-batch is run again with the
same randomness, and everything it touches is put back.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

from fallline.replay.again import as_it_was, prepare
from fallline.replay.capture import Capture, Gone
from fallline.replay.modules import unwrap
from fallline.replay.once import Once
from fallline.replay.shards import local
from fallline.taps.backward import BACKWARD, BackwardCall
from fallline.taps.optimizers import STEP, StepCall
from fallline.taps.tap import Reached, Subscription
from fallline.watcher.fuse import Fuse
from fallline.watcher.later import syncs_allowed
from fallline.watcher.origin import Origin
from fallline.watcher.progress import Progress
from fallline.watcher.recording import Recording

__all__ = ["Hardware"]

KEPT = 64  # checks
_WHOLE = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
_ODD = 0x9E3779B97F4A7C15  # so that bits of two tensors do not cancel

Sums = list[tuple[int, float]]  # of each tensor: its bits, and its size


class Hardware:
    """Of one process; off where `every` is 0."""

    def __init__(
        self, every: int, origin: Origin, progress: Progress, recording: Recording
    ) -> None:
        self._every = every
        self._origin = origin
        self._progress = progress
        self._recording = recording
        self._row: dict[str, Any] = {}  # of the check in progress
        self._rows: list[dict[str, Any]] = []
        self._hooks: list[Any] = []
        self._named: list[tuple[str, Tensor]] = []
        self._seen: dict[int, tuple[int, float]] = {}  # gradients as the backward makes them
        self._settled = ""  # the weights after the update before a check

    def subscribe(self, taps: Subscription, fuse: Fuse) -> None:
        if self._every:
            taps.before(BACKWARD, fuse.guarded(self._backward_begins))
            taps.after(BACKWARD, fuse.guarded(self._backward_ends))
            taps.before(STEP, fuse.guarded(self._step_begins))
            taps.after(STEP, fuse.guarded(self._step_ends))

    def awaits(self) -> int | None:
        """In how many updates the one before a check comes."""
        if not self._every:
            return None
        return max(0, self._every - 2 - self._progress.updates % self._every)

    @property
    def _due(self) -> bool:
        return (self._progress.updates + 1) % self._every == 0

    # -- one micro-batch, twice ----------------------------------------------------------------------------------

    def _backward_begins(self, call: BackwardCall) -> None:
        if not self._due or self._row.get("update") == self._progress.updates:
            return
        self._row = {"update": self._progress.updates}
        place = call.place
        if place is not None:
            self._row["at"] = [place.at.path, place.at.line]
        capture = self._origin.capture
        models = [unwrap(m) for m in capture.models] if capture is not None else []
        self._named = [(n, p) for m in models for n, p in m.named_parameters() if p.requires_grad]
        self._seen.clear()
        self._hooks = [
            p.register_hook(functools.partial(self._made, i))  # type: ignore[no-untyped-call]
            for i, (_, p) in enumerate(self._named)
            if not hasattr(p, "_local_tensor")
        ]

    def _made(self, number: int, gradient: Tensor) -> None:
        self._seen[number] = _sums([gradient])[0]

    def _backward_ends(self, call: BackwardCall) -> None:
        if self._row.get("update") != self._progress.updates:
            return
        if self._hooks:
            for hook in self._hooks:
                hook.remove()
            self._hooks = []
            with syncs_allowed():
                self._repeat(call.loss)
        with syncs_allowed():
            self._row["gradients"] = [_digest(_gradients(self._named))]

    def _repeat(self, loss: Any) -> None:
        """Compare with what the backward has just made; twice where that differs."""
        row, capture = self._row, self._origin.capture
        if capture is None or not self._seen:
            row["missing"] = "no gradient was seen"
            return
        mine = [self._seen.get(i, (0, 0.0)) for i in range(len(self._named))]
        if isinstance(loss, Tensor):
            mine.append(_sums([loss])[0])
        again = self._again(capture)
        if again is None:
            return
        row["differs"] = self._first_difference(mine, again)
        row["gap"] = _gap(mine, again)
        if row["differs"] is not None:
            third = self._again(capture)
            row["noise"] = _gap(again, third) if third is not None else None
            row["repeats"] = third == again

    def _again(self, capture: Capture) -> Sums | None:
        replay = prepare(capture)
        if replay.run is None or replay.way == "modules":
            self._row["missing"] = replay.missing
            return None
        try:
            with as_it_was(capture):
                loss = replay.run()
                wanted = [p for _, p in self._named]
                found = torch.autograd.grad(loss, wanted, allow_unused=True)
                return [(0, 0.0) if g is None else _sums([g])[0] for g in found] + _sums([loss])
        except Gone:
            self._row["missing"] = "an input of the model is no longer there"
        except (Exception, Once, Reached) as error:
            self._row["missing"] = f"the replay failed: {type(error).__name__}: {error}"
        return None

    def _first_difference(self, mine: Sums, again: Sums) -> str | None:
        """What differs, by its name; the loss comes first."""
        names = [name for name, _ in self._named] + ["the loss"]
        pairs = zip(names, mine, again, strict=False)
        apart = [name for name, a, b in pairs if a[0] != b[0]]
        return None if not apart else apart[-1] if apart[-1] == "the loss" else apart[0]

    # -- what memory keeps -----------------------------------------------------------------------------------------

    def _step_begins(self, call: StepCall) -> None:
        if self._row.get("update") != self._progress.updates:
            return
        with syncs_allowed():
            self._row.setdefault("gradients", []).append(_digest(_gradients(self._named)))
            self._row["weights"] = [self._settled, _digest(p for _, p in self._named)]

    def _step_ends(self, call: StepCall) -> None:
        """The update has been counted: this is the state between two updates."""
        row, self._row = self._row, {}
        if row:
            self._rows = [*self._rows, row][-KEPT:]
            described = {"every": self._every, "checks": self._rows}
            self._recording.open().describe("hardware", described)
        if self._due:
            self._origin.remember_randomness()
            with syncs_allowed():
                self._settled = _digest(p for _, p in self._named) if self._named else ""


def _gradients(named: list[tuple[str, Tensor]]) -> list[Tensor]:
    return [p.grad for _, p in named if p.grad is not None]


@torch.no_grad()
def _sums(tensors: Iterable[Tensor]) -> Sums:
    """Bits as whole numbers, added up: exact in any order, and different if one bit is."""
    found: Sums = []
    for tensor in tensors:
        values = local(tensor.detach())
        values = values.coalesce().values() if values.is_sparse else values
        values = torch.view_as_real(values) if values.is_complex() else values
        bits = values.contiguous().view(-1).view(_WHOLE[values.element_size()])
        size = float(values.double().norm()) if values.is_floating_point() else 0.0
        found.append((int(bits.sum(dtype=torch.int64)), size))
    return found


def _digest(tensors: Iterable[Tensor]) -> str:
    total = 0
    for number, (bits, _) in enumerate(_sums(tensors)):
        total = (total + bits * (_ODD * (2 * number + 1))) % (1 << 64)
    return f"{total:016x}"


def _gap(one: Sums, other: Sums) -> float:
    """The largest difference of two sizes, relative."""
    pairs = zip(one, other, strict=False)
    return max(
        (abs(a - b) / max(abs(a), abs(b)) for (_, a), (_, b) in pairs if a != b), default=0.0
    )
