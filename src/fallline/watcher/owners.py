"""Which optimizer owns which parameter: parameters that get gradients and belong to none, models replaced after the optimizer."""

from __future__ import annotations

import weakref
from typing import Any

import torch
from torch import Tensor, nn

from fallline.events import Replace
from fallline.location import Location
from fallline.replay.shards import local
from fallline.taps.frames import Place
from fallline.taps.gradients import gradient_of
from fallline.taps.modules import MODULE_MADE, MODULE_REGISTERED, ModuleMade, ModuleRegistered
from fallline.taps.tap import Subscription
from fallline.watcher.emit import Emitter, spot
from fallline.watcher.fuse import Fuse
from fallline.watcher.objects import Objects
from fallline.watcher.observed import Observed
from fallline.watcher.progress import Progress

__all__ = ["Owners"]

PATIENCE = (
    3  # updates: an optimizer may be made later, an update by hand may come at the end of the epoch
)
MOST = 256


class Owners:
    """Compares what backward reaches with what optimizers hold."""

    def __init__(
        self, emitter: Emitter, objects: Objects, progress: Progress, observed: Observed
    ) -> None:
        self._emitter = emitter
        self._objects = objects
        self._progress = progress
        self._observed = observed
        self._made: dict[
            int, tuple[weakref.ref[nn.Module], Place, tuple[str, ...]]
        ] = {}  # by id: a module may define its own hash
        self._stray: dict[
            int, tuple[weakref.ref[Tensor], Tensor, int]
        ] = {}  # serial → parameter, probe, update
        self._reported: set[Any] = set()
        self._replaced = False  # a finding of its own: FL306

    def subscribe(self, taps: Subscription, fuse: Fuse) -> None:
        taps.after(MODULE_MADE, fuse.guarded(self._module_made))
        taps.before(MODULE_REGISTERED, fuse.guarded(self._registered))

    def _module_made(self, call: ModuleMade) -> None:
        """A model made after an optimizer: remember where, outside of any constructor."""
        where = call.place if self._objects.optimizer_sets else None
        if where is None:
            return
        spots = (where.at, *where.callers)
        outside = next(
            (i for i, spot in enumerate(spots) if not spot.function.endswith("__init__")), None
        )
        if outside is not None:
            spot = Place(spots[outside], spots[outside + 1 :])
            older = tuple(self._objects.optimizer_sets)
            self._made[id(call.module)] = (weakref.ref(call.module), spot, older)

    def _registered(self, call: ModuleRegistered) -> None:
        """`model.head = nn.Linear(...)` when an optimizer already holds the old head."""
        old, new = call.module._modules.get(call.name), call.new
        if not isinstance(old, nn.Module) or old is new:
            return
        objects = self._objects
        gone = {objects.serial(p) for p in old.parameters()} - {
            objects.serial(p) for p in new.parameters()
        }
        for holder, number in objects.optimizer_sets.items():
            where = call.place
            if gone & objects.members(number) and where is not None:
                self._replaced = True
                at, callers = spot(where)
                number = objects.parameters(old.parameters())
                self._emitter.emit(
                    Replace(
                        at, callers=callers, what="head", optimizer=holder, parameter_set=number
                    )
                )

    def reached(
        self, leaves: list[Tensor], event_model: nn.Module | None, teachers: set[str]
    ) -> None:
        """A backward reaches these parameters. Models that run in eval mode are teachers: not trained on purpose."""
        objects = self._objects
        if not objects.optimizer_sets:
            return
        owned = self._owned()
        frozen = frozenset().union(*(objects.members(objects.model_sets[t]) for t in teachers))
        serials = {s: p for p in leaves if (s := objects.serial(p)) not in frozen}
        stray = serials.keys() - owned
        if stray and not serials.keys() & owned:
            self._recreated(event_model)
        for serial in list(stray)[:MOST]:
            if serial not in self._stray and len(self._stray) < MOST:
                parameter = serials[serial]
                if (probe := _probe(parameter)) is not None:
                    self._stray[serial] = (weakref.ref(parameter), probe, self._progress.steps)

    def _recreated(self, model: nn.Module | None) -> None:
        """Nothing that this backward reaches is held by any optimizer, and an older one holds just such parameters."""
        entry = self._made.get(id(model)) if model is not None else None
        if (
            model is None
            or entry is None
            or entry[0]() is not model
            or ("recreated", entry[1].at) in self._reported
        ):
            return
        shapes = sorted(tuple(p.shape) for p in model.parameters())
        for name, optimizer in self._objects.optimizers():
            held = sorted(tuple(p.shape) for g in optimizer.param_groups for p in g["params"])
            if name in entry[2] and held == shapes:
                self._reported.add(("recreated", entry[1].at))
                self._replaced = True
                number = self._objects.optimizer_sets[name]
                at, callers = spot(entry[1])
                self._emitter.emit(
                    Replace(
                        at, callers=callers, what="recreated", optimizer=name, parameter_set=number
                    )
                )
                return

    def stepped(self) -> None:
        if self._stray and self._progress.steps <= PATIENCE:
            self._lend()
        if self._stray and self._progress.steps in (PATIENCE + 1, 20, 100):
            self.look()

    def _lend(self) -> None:
        """`shared._grad = local.grad`: a worker's model computes gradients, and an optimizer steps those of the model that all share."""
        lenders = {
            gradient.data_ptr(): serial
            for serial, (reference, _, _) in self._stray.items()
            if (parameter := reference()) is not None
            and (gradient := gradient_of(parameter)) is not None
        }
        pairs = [
            (self._objects.serial(held), lenders[gradient.data_ptr()])
            for _, optimizer in self._objects.optimizers()
            for group in optimizer.param_groups
            for held in group["params"]
            if (gradient := gradient_of(held)) is not None and gradient.data_ptr() in lenders
        ]
        if pairs:
            self._objects.lent(pairs)
            for _, owner in pairs:
                del self._stray[owner]

    def look(self) -> None:
        """Parameters that got gradients and belong to no optimizer: some other code moves them, or nothing does (FL126)."""
        if not self._progress.counts or self._replaced:
            return
        owned = self._owned()
        moved: list[int] = []
        left: list[int] = []
        for serial, (reference, before, step) in self._stray.items():
            parameter = reference()
            if parameter is None or serial in owned or self._progress.steps - step < PATIENCE:
                continue
            now = _probe(parameter)
            if now is not None:
                (left if torch.equal(before, now) else moved).append(serial)
        if moved:
            self._moved(frozenset(moved))
        if left and "FL126" not in self._reported:
            self._reported.add("FL126")
            names = self._objects.parameter_names(left, whole=True)
            again = self._holds_anothers()
            facts = {
                "parameters": list(names)[:64],
                "count": len(names),
                "step": self._progress.updates - 1,
            }
            self._observed.add(
                "FL126", self._line_of(again), facts | ({"again": True} if again else {})
            )

    def _owned(self) -> frozenset[int]:
        sets = self._objects.optimizer_sets.values()
        return frozenset().union(*map(self._objects.members, sets))

    def _moved(self, serials: frozenset[int]) -> None:
        """Nobody holds these parameters, and they change: an optimizer that holds no model's parameters steps copies of them."""
        objects = self._objects
        trained = frozenset().union(*map(objects.members, objects.model_sets.values()))
        for number in list(objects.optimizer_sets.values()):
            if objects.members(number).isdisjoint(trained):
                objects.stands_for(number, serials)

    def _holds_anothers(self) -> str | None:
        """An optimizer whose parameters an older one holds already: a line that was copied, and not adapted."""
        seen: frozenset[int] = frozenset()
        for name, number in self._objects.optimizer_sets.items():
            members = self._objects.members(number)
            if members and members <= seen:
                return name
            seen |= members
        return None

    def _line_of(self, optimizer: str | None) -> Location:
        """Where this optimizer is made; by default the first one that has a line."""
        for name in self._objects.optimizer_sets:
            at = self._objects.described[name].at
            if at is not None and optimizer in (None, name):
                return at
        return Location("<unknown>", 1)


def _probe(parameter: Tensor) -> Tensor | None:
    """None where a wrapper has taken the values away for the time being."""
    try:
        with torch.no_grad():
            return local(parameter).detach().reshape(-1)[:16].clone()
    except RuntimeError:
        return None
