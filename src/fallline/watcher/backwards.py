"""Events of backward passes: what the loss was multiplied or divided by, and which parameters it reaches."""

from __future__ import annotations

from math import isfinite
from time import perf_counter as now
from types import FrameType
from typing import Any

from torch import Tensor

from fallline.events import Backward, Event, GradRead
from fallline.taps.backward import BACKWARD, GRADIENTS_TAKEN, BackwardCall, GradientsTaken
from fallline.taps.frames import Place, from_torch
from fallline.taps.tap import Subscription
from fallline.watcher.emit import NOWHERE, Emitter, spot
from fallline.watcher.facts import autocast_dtype, by_engine, by_framework, passed_on
from fallline.watcher.forwards import any_autocast
from fallline.watcher.fuse import Fuse
from fallline.watcher.kept import KeptGraphs
from fallline.watcher.loss import facts_of
from fallline.watcher.memory import LiveGraphs
from fallline.watcher.objects import Objects
from fallline.watcher.origin import Origin
from fallline.watcher.progress import Draft
from fallline.watcher.reach import WALKS_PER_SITE, Reach
from fallline.watcher.routine import Routine
from fallline.watcher.scalers import Scalers
from fallline.watcher.spikes import Spikes
from fallline.watcher.window import Window
from fallline.watcher.wrappers import Wrappers

__all__ = ["Backwards"]


class Backwards:
    """The backward passes, and the losses they begin with."""

    def __init__(
        self,
        emitter: Emitter,
        routine: Routine,
        objects: Objects,
        window: Window,
        wrappers: Wrappers,
        draft: Draft,
        scalers: Scalers,
        reach: Reach,
        origin: Origin,
        spikes: Spikes,
        graphs: LiveGraphs,
        kept: KeptGraphs,
        fuse: Fuse,
    ) -> None:
        self._emitter = emitter
        self._routine = routine
        self._objects = objects
        self._window = window
        self._wrappers = wrappers
        self._draft = draft
        self._scalers = scalers
        self._reach = reach
        self._origin = origin
        self._spikes = spikes
        self._graphs = graphs
        self._kept = kept
        self._fuse = fuse
        self.weighed = False  # exact accumulation weighs the loss whose backward comes next
        self._looked: dict[int, tuple[int, bool]] = {}  # by place: losses seen, ragged?
        self._counted: dict[int, tuple[float, bool]] = {}  # by place: elements of the first loss
        self._event: Event | None = None  # of the call in progress
        self._started = 0.0

    def subscribe(self, taps: Subscription) -> None:
        taps.before(BACKWARD, self._begins)
        taps.after(BACKWARD, self._ends)
        taps.before(GRADIENTS_TAKEN, self._fuse.guarded(self._gradients_taken))

    def _begins(self, call: BackwardCall) -> None:
        self._event = None
        if self._fuse.off:
            return
        frame, loss, kwargs = call.frame, call.loss, call.kwargs
        key = (
            "backward",
            kwargs.get("retain_graph") if kwargs else None,
            id(frame.f_code),
            frame.f_lasti,
            any_autocast(),
            self._wrappers.any and self._wrappers.syncing(),
        )
        routine = self._routine
        recorded = not routine.resting or routine.keys[routine.at] != key
        try:
            if recorded:
                self._emitter.trainer_known()
                routine.differs(key)
                event: Event = self._record(loss, call)
            else:
                event = routine.events[routine.at]
                routine.at += 1
                if isinstance(event, Backward) and event.sync:
                    self._draft.all_reduces += 1
            self._draft.loss_at = event.at
            if isinstance(loss, Tensor) and (recorded or not self._goes_again(loss, event, frame)):
                self._graphs.note(loss)
                number = self._value_of(loss, event)
                if number is not None:
                    self._draft.losses.append(number)
                self._origin.before_backward(loss, number, event, frame, recorded)
                if isinstance(number, float):
                    self._spikes.look(number)
            self._event = event
        except Exception as error:
            self._fuse.fail(error)
        self._started = now()
        if self._draft.clock is not None:
            self._draft.clock.mark("backward")

    def _ends(self, call: BackwardCall) -> None:
        event = self._event
        if event is None or self._fuse.off:
            return
        self._draft.seconds["backward"] += now() - self._started
        if self._draft.clock is not None:
            self._draft.clock.mark("other")
        # in an update that goes like the last one the guard's look may come next
        if not (self._origin.guard_follows and self._routine.resting):
            self._fuse.safely(self._origin.after_backward, event)

    # -- the loss ----------------------------------------------------------------------------------------------

    def _goes_again(self, loss: Tensor, event: Event, frame: FrameType) -> bool:
        """What is done for a finite loss of a CPU in a well-known update, in one place."""
        origin = self._origin
        capture, node = origin.capture, loss.grad_fn
        if capture is None or capture.random is not None or node is None:
            return False
        if self._scalers.unscaled is not None or self._draft.given is not None or not loss.is_cpu:
            return False
        try:
            number = loss.item()
        except RuntimeError:  # several numbers
            return False
        level = self._spikes.level
        if number.__class__ is not float or not isfinite(number) or number > level.limit:
            return False
        level.add(number)
        node.metadata["fallline"] = self._graphs.anchor  # type: ignore[index]
        self._draft.losses.append(number)
        capture.end(frame, False)
        origin.latest, origin.lost = event, False
        return True

    def _value_of(self, loss: Tensor, event: Event) -> float | Tensor | None:
        """Of a loss that is one number: on an accelerator it stays there."""
        unscaled, self._scalers.unscaled = self._scalers.unscaled, None
        given, self._draft.given = self._draft.given, None
        if given is not None:
            loss = given.loss
        elif unscaled is not None and isinstance(event, Backward) and event.scaled:
            loss = unscaled
        if loss.is_cpu:
            try:
                value = loss.item()
            except RuntimeError:  # several numbers
                return None
            return value if isinstance(value, float) else None
        one = loss.numel() == 1 and loss.is_floating_point() and not loss.is_meta
        return loss.detach() if one else None

    # -- the event ---------------------------------------------------------------------------------------------

    def _record(self, loss: Any, call: BackwardCall) -> Backward:
        where = call.place or Place(NOWHERE)
        event = self._described(loss, where)
        options = call.options
        event.retain_graph = True if options.get("retain_graph") else None
        event.create_graph = True if options.get("create_graph") else None
        if event.retain_graph or event.create_graph:
            event.second = False  # until another backward comes without a new forward pass
        window = self._window
        if not window.forwards and window.backward is not None and window.backward.retain_graph:
            window.backward.second = True
        self._synchronisation(event)
        self._normalised(event, where.framework)
        if window.forwards and all(f.used is None for f in window.forwards):
            for forward in window.forwards:
                forward.used = True
        event.scaler = self._scalers.of(event)
        event.model = window.forwards[-1].model if window.forwards else None
        self._emitter.emit(event)
        window.close(event)
        self._kept.loss(loss, event)
        return event

    def _described(self, loss: Any, where: Place) -> Backward:
        """What the loss itself shows."""
        at, callers = spot(where)
        if not isinstance(loss, Tensor):
            return Backward(at, callers=callers, autocast=autocast_dtype("cpu"))
        given = self._draft.given.loss if self._draft.given is not None else loss
        facts = facts_of(given, self._scalers.scales, self._ragged(where))
        counted = facts.pop("counted", None)
        if counted is not None and self._varies(where, *counted):
            facts["ragged"] = True
        event = Backward(at, callers=callers, autocast=autocast_dtype(loss.device.type), **facts)
        if event.ragged:
            self._looked[id(where.at)] = (0, True)
        event.parameter_set = self._reach.parameters(loss, where)
        event.half_parameters = self._reach.half(event.parameter_set)
        return event

    def _ragged(self, where: Place) -> bool | None:
        """What earlier losses from this line have shown: once ragged, always; after many that were not, looked at now and then."""
        count, ragged = self._looked.get(id(where.at), (0, False))
        self._looked[id(where.at)] = (count + 1, ragged)
        if ragged:
            return True
        return None if count < 4 * WALKS_PER_SITE or count % WALKS_PER_SITE == 0 else False

    def _varies(self, where: Place, count: float, fewer: bool) -> bool:
        """Whether losses from this line are means over different numbers of elements because of what they leave out. A mask that always
        leaves out the same share is none of these, nor is a last batch that is shorter."""
        first, before = self._counted.setdefault(id(where.at), (count, fewer))
        if fewer and not before:
            self._counted[id(where.at)] = (first, True)
        return count != first and (fewer or before)

    def _synchronisation(self, event: Backward) -> None:
        """Whether this backward all-reduces was decided when its forward pass ran."""
        last = next((f for f in reversed(self._window.forwards) if f.wrapper), None)
        if last is None:
            return
        event.wrapper = last.wrapper
        if last.no_sync is not None:
            event.sync = not last.no_sync
            self._draft.all_reduces += event.sync
        model = next((m for n, m in self._objects.models() if n == last.model), None)
        if model is not None and (reduces := self._wrappers.reduces(model)) is not None:
            event.sync = reduces  # FSDP2 decides when the backward runs
            self._draft.all_reduces += reduces
        ddp = self._wrappers.around(model) if model is not None else None
        if ddp is not None:
            event.no_sync = not getattr(ddp, "require_backward_grad_sync", True)

    def _normalised(self, event: Backward, framework: str | None) -> None:
        """A framework between the user and backward has divided already: that division is not the user's."""
        if self.weighed:
            self.weighed = False
            event.normalised, event.divided, event.divisor = "fallline", None, None
        elif self._draft.given is not None:
            by_engine(event, framework or "deepspeed", self._draft.given.window)
        elif framework is not None and framework != "fabric" and not passed_on(framework):
            by_framework(event, framework)

    def _gradients_taken(self, call: GradientsTaken) -> None:
        where = call.place
        if where is None or from_torch():
            return
        for event in self._window.forwards:
            if event.used is None:  # it may walk what a hook has kept of any that is still alive
                event.used = True
        at, callers = spot(where)
        self._emitter.emit(GradRead(at, callers=callers, what="use"))
