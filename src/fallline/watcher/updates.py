"""One update, from gradients that are complete to its row: numbers are sampled, the guard looks, the step is told.

Most updates go like the ones before them. What is done for those is kept in few functions: inside a training loop the
caches hold the user's tensors, and each function that is called has to be fetched first.
"""

from __future__ import annotations

from dataclasses import dataclass
from time import perf_counter as now
from time import time
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from fallline.location import Location
from fallline.runs.samples import ParameterInfo
from fallline.runs.update import UpdateRow
from fallline.taps.optimizers import ClosureCall, StepCall
from fallline.taps.tap import Call
from fallline.watcher.guard import Guard, GuardStop
from fallline.watcher.memory import LiveGraphs, live_bytes
from fallline.watcher.numbers import Numbers, describe_parameters
from fallline.watcher.objects import learning_rate
from fallline.watcher.recorder import Recorder, as_it_is
from fallline.watcher.taps_events import Teller
from fallline.watcher.taps_facts import autocast_dtype

if TYPE_CHECKING:
    from collections.abc import Callable

    from fallline.watcher.judge import Judge
    from fallline.watcher.origin import Origin
    from fallline.watcher.session import Options

__all__ = ["Updates"]

MEMORY_EVERY = 16
NO_CLIP = (None, None)  # the norm that was measured, and the threshold


@dataclass(slots=True)
class Known:
    """An optimizer, while updates are well known."""

    name: str
    held: int  # its set of parameters
    numbers: Numbers
    on_device: bool


class Updates(Teller):
    """What happens around an optimizer's step. Not on its own: a part of `Session`."""

    options: Options
    guard: Guard
    origin: Origin
    recorder: Recorder | None
    world: int
    forked: bool
    open: Callable[[], Recorder]
    wake: Callable[[], None]
    safely: Callable[..., Any]
    fail: Callable[[Exception], None]
    _judge: Judge

    def __init__(self) -> None:
        super().__init__()
        self.graphs = LiveGraphs()
        self.counts: dict[str, int] = {}  # updates by optimizer
        self.micro_batches = 0  # of the last update
        self._numbers: dict[str, tuple[int, Numbers]] = {}
        self._known: dict[int, Known] = {}  # by id of the optimizer
        self._losses: list[Any] = []
        self._loss_at: Location | None = None
        self._clip: tuple[Any, float | None] = NO_CLIP
        self._scale: Any = None
        self._last_step: tuple[Any, float | None] = (None, None)  # and its learning rate
        self._step_started = 0.0
        self._first_event = 0  # of those that a closure causes
        self._in_closure = 0.0  # seconds: what the closure of a step does has its own place
        self._closure_started = 0.0
        self._closure = False
        self._stepped = False
        self._memory: int | None = None

    def before_step(self, call: StepCall) -> None:
        if self.off and not self._woken():
            return
        optimizer, self._closure, self.in_closure = call.optimizer, call.closure, False
        if call.closure:  # gradients are made inside: they are looked at when the closure has run
            self._step_started, self._in_closure = now(), 0.0
            self._first_event = len(self.log.events)
            return
        try:
            known = self._known.get(id(optimizer))
            if known is None or not self.routine.resting or known.on_device:
                self._gradients_ready(optimizer)
            else:
                index = self.counts[known.name]
                if index >= known.numbers.rests_until or known.numbers.fingerprints:
                    self._sample(optimizer, index, known.numbers)
                self.guard.check(optimizer, index, known.held)
        except GuardStop:
            raise
        except Exception as error:
            self.fail(error)
        self._step_started, self._in_closure = now(), 0.0  # our own part is not the step

    def _woken(self) -> bool:
        """In a forked child, that it trains is news; it is watched from now on."""
        if self.forked:
            self.safely(self.wake)
        return not self.off

    def closure_begins(self, call: ClosureCall) -> None:
        # an optimizer may evaluate its closure many times (LBFGS): what counts is the last
        with self._lock:
            if len(self.log.events) > self._first_event and self.in_closure is None:
                del self.log.events[self._first_event :]
        self.in_closure, self._closure_started = True, now()

    def closure_ends(self, call: ClosureCall) -> None:
        self.in_closure = None
        self._gradients_ready(call.optimizer)
        self._in_closure += now() - self._closure_started

    def _gradients_ready(self, optimizer: torch.optim.Optimizer) -> None:
        known = self._known.get(id(optimizer)) if self.routine.resting else None
        if known is None:
            known = self._meet_optimizer(optimizer)
            if known is None:
                return
        if known.on_device and torch.cuda.is_current_stream_capturing():
            return  # a step that is being recorded into a CUDA graph: nothing may be waited for
        index = self.counts.get(known.name, 0)
        self._sample(optimizer, index, known.numbers)
        self.guard.check(optimizer, index, known.held)

    def _sample(self, optimizer: torch.optim.Optimizer, index: int, numbers: Numbers) -> None:
        scale = self._scale_value()
        fused = (
            getattr(optimizer, "found_inf", None) is not None
            and getattr(optimizer, "grad_scale", None) is not None
        )
        numbers.before_step(index, scale if scale is not None else 1.0, fused)

    def _meet_optimizer(self, optimizer: torch.optim.Optimizer) -> Known | None:
        """In an update that is recorded: what is known of this optimizer. None while a CUDA graph records it."""
        on_device = torch.cuda.is_initialized() and any(  # type: ignore[no-untyped-call]
            p.is_cuda for g in optimizer.param_groups for p in g["params"]
        )
        if on_device and torch.cuda.is_current_stream_capturing():
            return None
        name = self.objects.optimizer(optimizer)
        numbers = self._numbers_of(name, optimizer)
        known = Known(name, self.objects.optimizer_sets[name], numbers, on_device)
        self._known[id(optimizer)] = known
        self.origin.step_comes()
        return known

    def after_step(self, call: StepCall) -> None:
        if self.off:
            return
        optimizer = call.optimizer
        if self._step_started:
            self.seconds["step"] += now() - self._step_started - self._in_closure
        self._stepped = True
        self.in_closure = False
        try:
            held_back = self.guard.holds and self.guard.release(optimizer)
            if self.scaler_stepping is not None:
                found = getattr(optimizer, "found_inf", None)
                if isinstance(found, Tensor) and found.device.type == "cpu":
                    held_back = held_back or bool(found.item())  # a fused step that applied nothing
            self._step_done(optimizer, call, held_back)
        except Exception as error:
            self.fail(error)

    def _step_done(self, optimizer: torch.optim.Optimizer, call: Call, skipped: bool) -> None:
        routine = self.routine
        again = None
        if not skipped:
            frame = call.frame
            key = ("step", id(optimizer), id(frame.f_code), frame.f_lasti)
            if routine.resting and routine.keys[routine.at] == key:
                again = routine.events[routine.at]
                routine.at += 1
            else:
                routine.differs(key)
        self.steps += 1
        event = again or self.step_event(optimizer, call.place, skipped, self._closure)
        routine.stepped()
        name = event.optimizer or ""
        index = self.counts.get(name, 0)
        if len(self.counts) > 1:
            self.counts.pop(name, None)  # the one stepped last comes last
        self.counts[name] = index + 1
        rate = learning_rate(optimizer)
        last, last_rate = self._last_step
        calm = self.origin.calm and self.guard.norm is None
        if not skipped and not (calm and event is last and rate == last_rate):
            self._last_step = (event, rate)
            self.origin.after_step(optimizer, index, event, rate)
        if self.steps % MEMORY_EVERY == 1:
            self._memory = live_bytes()
        losses = self._losses
        self.micro_batches = max(1, len(losses))
        loss = losses[0] if len(losses) == 1 else mean_of(losses)
        (norm, threshold), scale, flag = self._clip, self._scale, self.guard.flag
        fields = (
            index,
            name,
            event.at,
            self._loss_at,
            time(),
            loss if loss.__class__ is float else as_it_is(loss),
            rate,
            None if scale is None else as_it_is(scale),
            skipped if flag is None else as_it_is(flag),
            None if norm is None else as_it_is(norm),
            threshold,
            self.guard.norm,
            self.seconds,
            self._memory,
            self.graphs.alive,
            self.micro_batches,
            self.all_reduces if self.world > 1 else None,
        )
        recorder = self.recorder or self.open()
        entry = self._numbers.get(name)
        if entry is None or not entry[1].waits:
            recorder.note(fields)
        else:
            row = UpdateRow(*fields)
            if skipped:
                entry[1].skipped()
            else:
                entry[1].after_step(row)
            recorder.update(row)
        self.seconds = {"data": 0.0, "forward": 0.0, "backward": 0.0, "step": 0.0}
        self._losses, self._clip, self._scale = [], NO_CLIP, None
        self._step_started, self.all_reduces = 0.0, 0
        self.origin.window_lost = False
        if again is None:
            self.by_hand.stepped(self.steps)
            self.owners.stepped(event)
            self.kept.stepped()
            self._judge.stepped()

    @property
    def scaling(self) -> bool:
        """The gradients of this update come from a scaled loss."""
        return self._scale is not None

    def _scale_value(self) -> float | None:
        scale = self._scale
        if not isinstance(scale, Tensor):
            return None
        return float(scale) if scale.device.type == "cpu" else None

    def _numbers_of(self, name: str, optimizer: torch.optim.Optimizer) -> Numbers:
        held = self.objects.optimizer_sets[name]
        known = self._numbers.get(name)
        if known is None or known[0] != held:
            named = self._named(optimizer)
            if known is None:
                scaled = bool(self._scalers) or autocast_dtype("cpu") == "float16"
                numbers = Numbers(
                    named, self.options.budget, half=scaled, fingerprints=self.world > 1
                )
                self._describe(name, optimizer)
            else:
                numbers = known[1]
                numbers.refresh(named)
            self._numbers[name] = known = (held, numbers)
        return known[1]

    def _named(self, optimizer: torch.optim.Optimizer) -> list[tuple[ParameterInfo, Tensor]]:
        known: dict[int, ParameterInfo] = {}
        for _, model in self.objects.models():
            known = describe_parameters(model) | known
        parameters = [p for g in optimizer.param_groups for p in g["params"]]
        return [
            (
                known.get(id(p))
                or ParameterInfo(f"parameter {i}", "", i, tuple(p.shape), str(p.dtype)[6:]),
                p,
            )
            for i, p in enumerate(parameters)
        ]

    def _describe(self, name: str, optimizer: torch.optim.Optimizer) -> None:
        held = self.objects.members(self.objects.optimizer_sets[name])
        models = [m for m, s in self.objects.model_sets.items() if held & self.objects.members(s)]
        wrapper = next(
            (w for m in models if (w := self.objects.described[m].fact("wrapper"))), None
        )
        facts = {
            "kind": "optimizer",
            "type": type(optimizer).__name__,
            "model": models[0] if models else None,
            "wrapper": wrapper,
        }
        facts["device"] = next(
            (p.device.type for g in optimizer.param_groups for p in g["params"]), None
        )
        self.open().describe(name, facts)


def mean_of(losses: list[Any]) -> Any:
    """Of a window's losses, on the device where they are."""
    if len(losses) <= 1:
        return losses[0] if losses else None
    if all(isinstance(loss, float) for loss in losses):
        return sum(losses) / len(losses)
    if any(not isinstance(x, Tensor) or x.device != losses[0].device for x in losses):
        return losses[-1]
    with torch.no_grad():
        return torch.stack([loss.float().reshape(()) for loss in losses]).mean()
