"""By what each rank multiplies its shards of a gradient between backward and step.

Shards of one gradient must all be multiplied by the same number. A clip written by hand over `to_local()` sees only this rank's
part of the norm, and no call of it can be told from any other arithmetic; what it does to the numbers can. A few elements of
a few shards are kept for the first updates. Whoever reads the run compares the ranks (FL308).
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

from fallline.location import Location
from fallline.replay.shards import local
from fallline.runs.store import Store
from fallline.taps.backward import BACKWARD, BackwardCall
from fallline.taps.gradients import gradient_of
from fallline.taps.optimizers import STEP, StepCall
from fallline.taps.tap import Subscription
from fallline.watcher.by_hand import ByHand
from fallline.watcher.fuse import Fuse
from fallline.watcher.later import Sent, send
from fallline.watcher.objects import Objects
from fallline.watcher.progress import Draft, Progress
from fallline.watcher.recording import Recording

__all__ = ["ShardFactors"]

LOOKS = 32  # backward passes
PARAMETERS = 8
ELEMENTS = 256  # of one shard
STRAIGHT = 1e-6  # of the squared length: what lies beside the direction from before is rounding


class ShardFactors:
    """Of one process."""

    def __init__(
        self,
        objects: Objects,
        progress: Progress,
        draft: Draft,
        by_hand: ByHand,
        recording: Recording,
    ) -> None:
        self._objects = objects
        self._progress = progress
        self._draft = draft
        self._by_hand = by_hand
        self._recording = recording
        self._kept: dict[str, tuple[Tensor, Tensor]] = {}  # name → parameter, elements
        self._names: dict[int, str] = {}
        self._rows: list[dict[str, Any]] = []  # written by the background thread
        self._looks = 0
        self._leave: Callable[[], None] = lambda: None

    def subscribe(self, taps: Subscription, fuse: Fuse) -> None:
        ends, begins = fuse.guarded(self._backward_ends), fuse.guarded(self._step_begins)
        taps.after(BACKWARD, ends)
        taps.before(STEP, begins)
        self._leave = functools.partial(taps.drop, ends, begins)

    def _backward_ends(self, call: BackwardCall) -> None:
        if self._looks >= LOOKS:
            self._leave()
            return
        self._looks += 1  # also where nothing is spread: a plain loop is not searched for ever
        self._by_hand.at = None
        with torch.no_grad():
            self._kept = {
                name: (parameter, elements.clone())
                for name, parameter in self._sharded()
                if (elements := _elements(parameter)) is not None
            }

    def _step_begins(self, call: StepCall) -> None:
        if not self._kept:
            return
        kept, self._kept = self._kept, {}
        with torch.no_grad():
            now = {name: _elements(parameter) for name, (parameter, _) in kept.items()}
            products = {
                name: _products(kept[name][1], elements)
                for name, elements in now.items()
                if elements is not None
            }
        if products:
            place = self._by_hand.at or self._draft.clip_at or spot_of(call)
            job = functools.partial(
                self._write,
                list(products),
                send(torch.stack(list(products.values()))),
                self._progress.updates,
                place,
            )
            self._recording.open().later(job)

    def _write(
        self, names: list[str], sent: Sent, update: int, at: Location | None, store: Store
    ) -> None:
        """In the background thread."""
        found = zip(names, sent.values(), strict=True)
        factors = {name: f for name, numbers in found if (f := _factor(*numbers)) is not None}
        if factors:
            place = [at.path, at.line, at.function] if at is not None else None
            self._rows.append({"update": update, "at": place, "factors": factors})
            store.meta("shards", self._rows)

    def _sharded(self) -> Iterator[tuple[str, Tensor]]:
        """The first few parameters that are spread over ranks, with their names."""
        found = 0
        for _, optimizer in self._objects.optimizers():
            for parameter in (p for g in optimizer.param_groups for p in g["params"]):
                if found < PARAMETERS and _is_spread(parameter):
                    found += 1
                    yield self._name(parameter), parameter

    def _name(self, parameter: Tensor) -> str:
        if id(parameter) not in self._names:
            self._names = {
                id(p): name for _, m in self._objects.models() for name, p in m.named_parameters()
            }
            self._names.setdefault(id(parameter), f"parameter {id(parameter)}")
        return self._names[id(parameter)]


def spot_of(call: StepCall) -> Location | None:
    place = call.place
    return place.at if place is not None else None


def _is_spread(parameter: Any) -> bool:
    """torch's own `is_shard()` does not know the shards of two meshes at once."""
    if not hasattr(parameter, "_local_tensor"):
        return False
    mesh = parameter.device_mesh
    return any(
        "Shard" in type(placement).__name__ and mesh.size(dimension) > 1
        for dimension, placement in enumerate(parameter.placements)
    )


def _elements(parameter: Tensor) -> Tensor | None:
    """Some of this rank's part of the gradient, from all over it."""
    gradient = gradient_of(parameter)
    if gradient is None:
        return None
    part = local(gradient)
    if not part.numel() or not part.is_contiguous() or not part.is_floating_point():
        return None
    return part.view(-1)[:: max(1, part.numel() // ELEMENTS)][:ELEMENTS]


def _products(before: Tensor, after: Tensor) -> Tensor:
    a, b = before.double(), after.double()
    return torch.stack([a @ b, a @ a, b @ b])


def _factor(both: float, before: float, after: float) -> float | None:
    """None where it was not multiplied by one number, or nothing can be said."""
    if not (before > 0 and after > 0 and both > 0):
        return None
    beside = after - both * both / before
    return both / before if beside <= STRAIGHT * after else None
