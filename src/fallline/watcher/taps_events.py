"""From taps to events: what each call means, with the user's line and what is known about it.

The state here is only what is needed to tell one event from another; nothing keeps the user's tensors alive.
"""

from __future__ import annotations

import threading
import weakref
from threading import get_ident
from typing import Any

import torch
from torch import Tensor, nn

from fallline.events import Event, Kind, make
from fallline.location import Location
from fallline.replay.modules import unwrap, wrapper_of
from fallline.replay.source import over_parameters
from fallline.taps.backward import BackwardCall, GradientsTaken
from fallline.taps.clipping import ClipCall
from fallline.taps.frames import Place, from_torch
from fallline.taps.modules import ModuleWrapped
from fallline.taps.optimizers import OptimizerMade, ZeroGradCall
from fallline.taps.scaling import ScaleCall, ScalerUpdateCall, UnscaleCall
from fallline.taps.schedulers import SchedulerStepCall
from fallline.taps.waits import Wait
from fallline.watcher.log import EventLog
from fallline.watcher.objects import Objects
from fallline.watcher.routine import Routine
from fallline.watcher.taps_data_events import DataTeller
from fallline.watcher.taps_facts import (
    autocast_dtype,
    by_framework,
    first_tensor,
    inner_of,
    passed_on,
)
from fallline.watcher.taps_grad import GradientTap
from fallline.watcher.taps_kept import KeptGraphs
from fallline.watcher.taps_loss import facts_of, reached, root_marker
from fallline.watcher.taps_mode_events import ModeTeller
from fallline.watcher.taps_owners import Owners

__all__ = ["Teller"]

MARK = "fallline.forward"
SPANS = ("data", "forward", "backward", "step")  # where the time of an update goes
# Walking a whole graph costs a millisecond or more: the first backward passes from one line tell what there is to tell.
WALKS_PER_SITE = 12
# Every iteration means every one of these; later ones say no more.
WAITS_LOOKED_AT = 30
# Calls of one kind from one line between two steps: an evaluation of ten thousand batches says no more than this many.
REPEATS = 300
_NOWHERE = Location("<unknown>", 1)


class Mark:
    """Left on the graph of a forward pass; dies with it."""

    __slots__ = ("__weakref__", "event")

    def __init__(self, event: Event) -> None:
        self.event = event

    def __del__(self) -> None:
        self.event.facts.setdefault("used", False)  # unless a backward has reached it


class Teller(DataTeller, ModeTeller):
    """Turns what taps tell into events, in order."""

    def __init__(self) -> None:
        super().__init__()
        self.objects = Objects()
        self.log = EventLog()
        self.off = (
            False  # nothing is watched: the watcher has failed, is over, or this is a forked child
        )
        self.weighed = False  # exact accumulation weighs the loss whose backward comes next
        self.in_closure: bool | None = False  # None: between two runs of one step's closure
        self.scaler_stepping: Any = None
        self.seconds = dict.fromkeys(SPANS, 0.0)
        self.steps = 0
        self.all_reduces = 0
        self.any_scaler = False
        self._scalers: weakref.WeakSet[Any] = weakref.WeakSet()
        self._walks: dict[tuple[str, int], int] = {}
        self._looked: dict[int, tuple[int, bool]] = {}  # by place: losses seen, ragged?
        self._reached: dict[tuple[str, int], int] = {}
        self._repeats: dict[tuple[str, int], int] = {}
        self._window: list[Event] = []  # forward passes since the last backward
        self._last_backward: Event | None = None
        self._lock = threading.Lock()
        # by thread, before it is known which one trains; None from then on
        self._early: list[tuple[int, Event]] | None = []
        self._half: dict[int, bool] = {}
        self.devices: dict[str, str] = {}  # of models; they stay where they train
        self._wrapped: dict[int, weakref.ref[nn.Module]] = {}
        self._met: dict[int, tuple[weakref.ref[nn.Module], str, str | None]] = {}
        self.by_hand = GradientTap(self)  # type: ignore[arg-type]
        self.kept = KeptGraphs(self)
        self.routine = Routine(self)
        self.owners = Owners(self)  # type: ignore[arg-type]

    # -- the means ---------------------------------------------------------------------------------------------

    def emit(self, kind: Kind | Event, where: Place | None = None, **named: Any) -> Event:
        """Record one event; what was done to gradients by hand before it is complete."""
        if self.by_hand.pending:
            self.by_hand.settle()
        if isinstance(kind, Event):
            self.record(kind)
            return kind
        return self.tell(kind, where, **named)

    def tell(
        self,
        kind: Kind,
        where: Place | None,
        *,
        optimizer: str | None = None,
        scaler: str | None = None,
        model: str | None = None,
        scheduler: str | None = None,
        loader: str | None = None,
        **named: Any,
    ) -> Event:
        """Ids go to their fields, the rest are facts; None means not known."""
        at, callers = (where.at, where.callers[::-1]) if where is not None else (_NOWHERE, ())
        event = make(
            kind,
            at,
            optimizer=optimizer,
            scaler=scaler,
            model=model,
            scheduler=scheduler,
            loader=loader,
            callers=callers,
            **named,
        )
        self.record(event)
        return event

    def trainer_known(self) -> None:
        """This thread trains: what others have done until now is not its doing."""
        mine = get_ident()
        others = {id(event) for ident, event in self._early or () if ident != mine}
        self._early = None
        if others:
            with self._lock:
                self.log.events[:] = [e for e in self.log.events if id(e) not in others]
            self._window = [e for e in self._window if id(e) not in others]

    def record(self, event: Event) -> None:
        if self._early is not None:
            self._early.append((get_ident(), event))
            del self._early[:-1000]
        self.routine.tell(event)
        self._keep(event)

    def passed(self, events: list[Event]) -> None:
        """Events of a well-known update that were let pass, and after which something new comes."""
        for event in events:
            self._keep(event)
            if event.kind is Kind.BACKWARD:
                self._window, self._last_backward = [], event
            elif event.kind is Kind.FORWARD and event.facts.get("grad"):
                self._window.append(event)

    def _keep(self, event: Event) -> None:
        key = (event.kind._value_, id(event.at))  # hashing an Enum is slow
        count = self._repeats[key] = self._repeats.get(key, 0) + 1
        if count > REPEATS and event.kind in (
            Kind.FORWARD,
            Kind.BATCH,
            Kind.EPOCH,
            Kind.EPOCH_END,
            Kind.MODE,
        ):
            return
        with self._lock:
            self.log.add(event)
        if event.kind is Kind.STEP:
            self._repeats.clear()

    # -- forward -----------------------------------------------------------------------------------------------

    def forward_event(self, module: nn.Module, where: Place | None) -> Event:
        """A model is called."""
        met = self._met.get(id(module))
        if met is None or met[0]() is not module:
            met = self._meet(module, where)
        _, model, wrapper = met
        held = module if wrapper else self._ddp_around(module)
        sync = getattr(held, "require_backward_grad_sync", None) if held is not None else None
        device = self.devices.get(model)
        if device is None or self.steps < 2:
            device = self.devices[model] = next((p.device.type for p in module.parameters()), "cpu")
        return self.emit(
            Kind.FORWARD,
            where,
            model=model,
            training=module.training,
            grad=torch.is_grad_enabled(),
            autocast=autocast_dtype(device),
            wrapper=wrapper,
            no_sync=None if sync is None or not wrapper else not sync,
            bypass=True if wrapper is None and held is not None else None,
        )

    def _meet(
        self, module: nn.Module, where: Place | None
    ) -> tuple[weakref.ref[nn.Module], str, str | None]:
        """A model is called for the first time: its name, and what it is wrapped in."""
        model = self.objects.model(module, where.at if where else None)
        wrapper = wrapper_of(module)
        if wrapper == "fsdp1":
            self._around(module)
        self._met[id(module)] = met = (weakref.ref(module), model, wrapper)
        return met

    def _ddp_around(self, module: nn.Module) -> nn.Module | None:
        """The DDP model whose inside this module is, when it was called past the wrapper."""
        reference = self._wrapped.get(id(module))
        around = reference() if reference is not None else None
        return around if around is not None and getattr(around, "module", None) is module else None

    def wrapped(self, call: ModuleWrapped) -> None:
        self._around(call.module)

    def _around(self, around: nn.Module) -> None:
        """A model was put into DDP or FSDP1."""
        inner = getattr(around, "module", None)
        if isinstance(inner, nn.Module):
            self._wrapped[id(inner)] = weakref.ref(around)

    def forward_done(self, event: Event, output: Any) -> None:
        if not event.facts.get("grad"):
            return
        self._window.append(event)
        del self._window[:-64]
        tensor = first_tensor(output)
        if tensor is not None:
            mark = Mark(event)
            if root_marker(tensor, MARK, mark):
                self.kept.output(mark, event)
                event.facts["followed"] = True

    # -- backward ----------------------------------------------------------------------------------------------

    def backward_event(self, loss: Tensor | None, call: BackwardCall) -> Event:
        where, named = call.place or Place(_NOWHERE), call.options
        facts: dict[str, Any] = {}
        device = "cpu"
        if isinstance(loss, Tensor):
            device = loss.device.type
            scales = [s._scale for s in self._scalers] if self.any_scaler else ()
            facts = facts_of(loss, scales, self._ragged(where))
            if facts.get("ragged"):
                self._looked[id(where.at)] = (0, True)
            number = facts["parameters"] = self._parameters(loss, where)
            facts["half_parameters"] = (
                (self._half.get(number) or None) if number is not None else None
            )
        facts["autocast"] = autocast_dtype(device)
        for name in ("retain_graph", "create_graph"):
            if named.get(name):
                facts[name] = True
                facts["second"] = False  # until another backward comes without a new forward pass
        if (
            not self._window
            and self._last_backward is not None
            and self._last_backward.facts.get("retain_graph")
        ):
            self._last_backward.facts["second"] = True
        self._synchronisation(facts)
        self._normalised(facts, where.framework)
        if self._window and all(f.facts.get("used") is None for f in self._window):
            for event in self._window:
                event.facts["used"] = True
        scaler = next((s for s in self._scalers), None) if facts.get("scaled") else None
        event = self.emit(
            Kind.BACKWARD,
            where,
            scaler=self.objects.known(scaler) if scaler is not None else None,
            model=self._window[-1].model if self._window else None,
            **facts,
        )
        self._window = []
        self._last_backward = event
        self.kept.loss(loss, event)
        return event

    def _ragged(self, where: Place) -> bool | None:
        """What earlier losses from this line have shown: once ragged, always; after many that were not, looked at now and then."""
        count, ragged = self._looked.get(id(where.at), (0, False))
        self._looked[id(where.at)] = (count + 1, ragged)
        if ragged:
            return True
        return None if count < 4 * WALKS_PER_SITE or count % WALKS_PER_SITE == 0 else False

    def _parameters(self, loss: Tensor, where: Place) -> int | None:
        """Which parameters this backward reaches, as a set number; walks the graph while that is news."""
        key = (where.at.path, where.at.line)
        walks = self._walks.get(key, 0)
        if walks >= WALKS_PER_SITE:
            return self._reached.get(key)
        self._walks[key] = walks + 1
        leaves, marks, whole = reached(loss, MARK)
        for mark in marks:
            mark.event.facts["used"] = True
        inputs = [
            leaf for leaf in leaves if not isinstance(leaf, nn.Parameter) and not self._held(leaf)
        ]
        if inputs:
            self.emit(Kind.GRAD_READ, where, what="input")
        if not whole:
            self._reached.pop(key, None)
            return None
        held = sorted(
            (leaf for leaf in leaves if isinstance(leaf, nn.Parameter) or self._held(leaf)), key=id
        )
        number = self._reached[key] = self.objects.parameters(held)
        model = next(
            (m for n, m in self.objects.models() if self._window and n == self._window[-1].model),
            None,
        )
        teachers = {f.model for f in self._window if f.model and f.facts.get("training") is False}
        self.owners.reached(held, model, teachers)
        self._half[number] = any(leaf.dtype is torch.float16 for leaf in held)
        return number if self.objects.members(number) else None

    def _held(self, tensor: Tensor) -> bool:
        """Some optimizer steps this plain tensor."""
        serial = self.objects.serial(tensor)
        return any(serial in self.objects.members(n) for n in self.objects.optimizer_sets.values())

    def _synchronisation(self, facts: dict[str, Any]) -> None:
        """Whether this backward all-reduces was decided when its forward pass ran."""
        wrapped = [e for e in self._window if e.facts.get("wrapper")]
        if not wrapped:
            return
        last = wrapped[-1]
        facts["wrapper"] = last.facts["wrapper"]
        if "no_sync" in last.facts:
            facts["sync"] = not last.facts["no_sync"]
            self.all_reduces += not last.facts["no_sync"]
        around = next((m for n, m in self.objects.models() if n == last.model), None)
        ddp = self._ddp_around(around) if around is not None else None
        if ddp is not None:
            facts["no_sync"] = not getattr(ddp, "require_backward_grad_sync", True)

    def _normalised(self, facts: dict[str, Any], framework: str | None) -> None:
        """A framework between the user and backward has divided already: that division is not the user's."""
        if self.weighed:
            self.weighed = False
            facts["normalised"] = "fallline"
            facts.pop("divided", None)
            facts.pop("divisor", None)
            return
        if framework is not None and framework != "fabric" and not passed_on(framework):
            by_framework(facts, framework)

    def gradients_taken(self, call: GradientsTaken) -> None:
        where = call.place
        if where is not None and not from_torch():
            for (
                event
            ) in self._window:  # it may walk what a hook has kept of any that is still alive
                event.facts.setdefault("used", True)
            self.emit(Kind.GRAD_READ, where, what="use")

    # -- step, clear, clip -------------------------------------------------------------------------------------

    def step_event(
        self, optimizer: torch.optim.Optimizer, where: Place | None, skipped: bool, closure: bool
    ) -> Event:
        where = where or Place(_NOWHERE)
        name = self.objects.known(optimizer) or self.objects.optimizer(optimizer, where.at)
        scaler = self.scaler_stepping
        via = "scaler" if scaler is not None else "framework" if where.framework else "direct"
        return self.emit(
            Kind.STEP,
            where,
            optimizer=name,
            scaler=self.objects.known(scaler) if scaler is not None else None,
            via=via,
            skipped=skipped,
            closure=closure or None,
            parameters=self.objects.optimizer_sets[name],
        )

    def optimizer_made(self, call: OptimizerMade) -> None:
        where = call.place
        self.objects.optimizer(call.optimizer, where.at if where else None)

    def zero_grad(self, call: ZeroGradCall) -> None:
        if self.routine.expected("zero_grad", call.owner, call.frame):
            return
        if isinstance(call.owner, nn.Module):
            self._zero_grad_of_model(call.owner, call.place)
            return
        name = self.objects.optimizer(call.owner)
        self.emit(
            Kind.ZERO_GRAD,
            call.place,
            optimizer=name,
            clears="grad",
            parameters=self.objects.optimizer_sets[name],
        )

    def _zero_grad_of_model(self, module: nn.Module, where: Place | None) -> None:
        known = self.objects.known(unwrap(module))
        number = self.objects.parameters(module.parameters())
        self.emit(Kind.ZERO_GRAD, where, model=known, clears="grad", parameters=number)

    def clip_event(self, call: ClipCall) -> Event:
        parameters, how, threshold = call.parameters, call.how, call.threshold
        again = self.routine.expected("clip", None, call.frame, how)
        if again is not None:
            return again
        where = call.place
        listed = [parameters] if isinstance(parameters, Tensor) else list(parameters)
        limit = None
        if isinstance(threshold, int | float):
            limit = float(threshold)
        elif (
            isinstance(threshold, Tensor)
            and threshold.numel() == 1
            and threshold.device.type == "cpu"
        ):
            limit = float(threshold)
        return self.emit(
            Kind.CLIP,
            where,
            how=how,
            threshold=limit,
            parameters=self.objects.parameters(listed) if listed else None,
            closure=self.in_closure or None,
            local_shards=self._sharded(listed) or None,
        )

    def _sharded(self, parameters: list[Any]) -> bool:
        """Parts of parameters that FSDP1 has spread over ranks."""
        around = [
            m
            for ref in self._wrapped.values()
            if (m := ref()) is not None and wrapper_of(m) == "fsdp1"
        ]
        if not any(
            getattr(getattr(m, "sharding_strategy", None), "name", "") != "NO_SHARD" for m in around
        ):
            return False
        return any(
            getattr(p, "_is_flat_param", False) or getattr(p, "_fsdp_flattened", False)
            for p in parameters
        )

    # -- loss scaling, schedulers ------------------------------------------------------------------------------

    def scaled(self, call: ScaleCall) -> None:
        self._scalers.add(call.scaler)
        self.any_scaler = True
        self.scaler_id(call.scaler)

    def scaler_id(self, scaler: Any) -> str:
        return self.objects.name("scaler", scaler, enabled=bool(scaler._enabled))

    def unscale(self, call: UnscaleCall) -> None:
        if self.routine.expected("unscale", call.scaler, call.frame):
            return
        self.emit(
            Kind.UNSCALE,
            call.place,
            scaler=self.scaler_id(call.scaler),
            optimizer=self.objects.optimizer(inner_of(call.optimizer)),
        )

    def scaler_update(self, call: ScalerUpdateCall) -> None:
        if not self.routine.expected("scaler_update", call.scaler, call.frame):
            self.emit(Kind.SCALER_UPDATE, call.place, scaler=self.scaler_id(call.scaler))

    def scheduler_step(self, call: SchedulerStepCall) -> None:
        scheduler = call.scheduler
        if self.routine.expected("scheduler_step", scheduler, call.frame):
            return
        name = self.objects.name("scheduler", scheduler, type=type(scheduler).__name__)
        optimizer = getattr(scheduler, "optimizer", None)
        held = self.objects.optimizer(inner_of(optimizer)) if optimizer is not None else None
        self.emit(
            Kind.SCHEDULER_STEP,
            call.place,
            scheduler=name,
            optimizer=held,
            explicit=call.explicit,
            per=self.in_loop(),
        )

    # -- waits -------------------------------------------------------------------------------------------------

    def waits(self, call: Wait) -> None:
        where = call.place
        if self.steps < WAITS_LOOKED_AT and where is not None:
            per = over_parameters(where.at) or None
            self.emit(Kind.SYNC, where, what=call.what, device="cuda", per_parameter=per)
