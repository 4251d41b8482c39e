"""One update, from gradients that are complete to its row: numbers are sampled, the guard looks, the step is recorded.

Most updates go like the ones before them. What is done for those is kept in few functions: inside a training loop the
caches hold the user's tensors, and each function that is called has to be fetched first.
"""

from __future__ import annotations

from collections.abc import Callable
from sys import getrefcount
from time import perf_counter as now
from time import time
from typing import Any

import torch
from torch import Tensor

from fallline.events import Event, GradWrite, ZeroGrad
from fallline.runs.update import UpdateRow
from fallline.taps.deepspeed import ENGINE_STEP, EngineStep
from fallline.taps.optimizers import (
    CLOSURE,
    PARAMETERS_ADDED,
    STEP,
    STEP_PART,
    ClosureCall,
    StepCall,
    StepPart,
)
from fallline.taps.scaling import SCALER_STEP, ScalerStepCall
from fallline.taps.tap import Call, Subscription
from fallline.watcher.clock import DeviceClock
from fallline.watcher.duty import Duty
from fallline.watcher.facts import inner_of
from fallline.watcher.fuse import Fuse, GuardStop
from fallline.watcher.guard import Guard
from fallline.watcher.known import Known
from fallline.watcher.later import Number
from fallline.watcher.log import EventLog
from fallline.watcher.measures import Closure, Measures
from fallline.watcher.memory import LiveGraphs, live_bytes
from fallline.watcher.numbers import Numbers
from fallline.watcher.objects import learning_rate
from fallline.watcher.origin import Origin
from fallline.watcher.progress import Draft, Progress
from fallline.watcher.recorder import as_it_is, as_they_are
from fallline.watcher.recording import Recording
from fallline.watcher.routine import Routine
from fallline.watcher.scalers import Scalers
from fallline.watcher.spikes import Spikes
from fallline.watcher.steps import Steps

__all__ = ["Updates"]

MEMORY_EVERY = 16


class Updates:
    """What happens around an optimizer's step."""

    def __init__(
        self,
        steps: Steps,
        routine: Routine,
        log: EventLog,
        progress: Progress,
        draft: Draft,
        scalers: Scalers,
        measures: Measures,
        guard: Guard,
        origin: Origin,
        spikes: Spikes,
        graphs: LiveGraphs,
        recording: Recording,
        fuse: Fuse,
        known: dict[int, Known],
        duty: Duty,
        stepped: Callable[[], None],
    ) -> None:
        """`known`: by id of the optimizer. `stepped` is called after each update that was recorded in full."""
        self._steps = steps
        self._routine = routine
        self._log = log
        self._progress = progress
        self._draft = draft
        self._scalers = scalers
        self._measures = measures
        self._guard = guard
        self._origin = origin
        self._spikes = spikes
        self._graphs = graphs
        self._recording = recording
        self._fuse = fuse
        self._after = stepped
        self._known = known
        self._duty = duty
        self._last_step: tuple[Any, float | None] = (None, None)  # and its learning rate
        self._started = 0.0  # the step in progress
        self._closure = Closure()
        self._stepped = False
        self._parts_held = False  # some part of a step that is made in parts was held back
        self._memory: int | None = None
        self._clock: DeviceClock | None = None  # where some optimizer steps on a device
        self._untimed = 0  # updates until the next one that is timed there

    def subscribe(self, taps: Subscription) -> None:
        guarded = self._fuse.guarded
        taps.before(STEP, self.begins)
        taps.after(STEP, self._ends)
        taps.before(CLOSURE, guarded(self._closure_begins))
        taps.after(CLOSURE, guarded(self._closure_ends))
        taps.before(SCALER_STEP, guarded(self._scaler_begins))
        taps.after(SCALER_STEP, guarded(self._scaler_ends))
        taps.before(STEP_PART, self._part_begins)
        taps.after(STEP_PART, guarded(self._part_ends))
        taps.after(ENGINE_STEP, guarded(self._engine_ends))
        taps.before(PARAMETERS_ADDED, guarded(self._parameters_added))

    def _parameters_added(self, call: Call) -> None:
        """An optimizer was made or got more parameters: what is known of it is no longer so."""
        self._duty.wake()
        self._known.clear()
        self._routine.forget()

    # -- before the step ---------------------------------------------------------------------------------------

    def begins(self, call: StepCall) -> None:
        if self._fuse.off:
            return
        optimizer, self._draft.in_closure = call.optimizer, False
        self._closure.given, self._closure.computes = call.closure, False
        if call.closure:  # gradients are made inside: they are looked at when the closure has run
            routine = self._routine
            self._closure.first = len(self._log.events) + (routine.at if routine.resting else 0)
            self._closure.before = len(self._draft.losses)
            self._closure.evaluations = self._closure.uncleared = 0
        else:
            try:
                known = self._known.get(id(optimizer))
                if known is None or not self._routine.resting or known.on_device:
                    self._gradients_ready(optimizer)
                else:
                    index = self._progress.counts[known.name]
                    if index >= known.numbers.rests_until or known.numbers.fingerprints:
                        self._sample(optimizer, index, known.numbers)
                    self._guard.check(optimizer, index, known.held)
            except GuardStop:
                raise
            except Exception as error:
                self._fuse.fail(error)
        self._started, self._closure.seconds = now(), 0.0  # our own part is not the step
        if self._draft.clock is not None:
            self._draft.clock.mark("step")

    def _closure_begins(self, call: ClosureCall) -> None:
        # an optimizer may evaluate its closure many times (LBFGS): what counts is the last
        if self._draft.in_closure is None:
            if self._routine.resting:
                self._routine.wake()  # what was let pass until now is in the log again
            if len(self._log.events) > self._closure.first:
                self._closure.uncleared += not _clear(self._log.events[self._closure.first :])
                self._log.cut_off(self._closure.first)
            if self._closure.evaluations == 1:
                self._closure.first_loss = mean_of(self._draft.losses[self._closure.before :])
            del self._draft.losses[self._closure.before :]
        self._closure.losses = len(self._draft.losses)
        self._closure.evaluations += 1
        self._draft.in_closure, self._closure.started = True, now()

    def _closure_ends(self, call: ClosureCall) -> None:
        self._draft.in_closure = None
        if len(self._draft.losses) > self._closure.losses:
            self._closure.computes = True
        self._gradients_ready(call.optimizer)
        self._closure.seconds += now() - self._closure.started

    def _gradients_ready(self, optimizer: torch.optim.Optimizer) -> None:
        known = self._known.get(id(optimizer)) if self._routine.resting else None
        if known is None:
            known = self._meet(optimizer)
            if known is None:
                return
        if known.on_device and torch.cuda.is_current_stream_capturing():
            return  # a step that is being recorded into a CUDA graph: nothing may be waited for
        index = self._progress.counts.get(known.name, 0)
        self._sample(optimizer, index, known.numbers)
        self._guard.check(optimizer, index, known.held)

    def _sample(self, optimizer: torch.optim.Optimizer, index: int, numbers: Numbers) -> None:
        scale = self._scalers.value()
        fused = (
            getattr(optimizer, "found_inf", None) is not None
            and getattr(optimizer, "grad_scale", None) is not None
        )
        numbers.before_step(index, scale if scale is not None else 1.0, fused)

    def _meet(self, optimizer: torch.optim.Optimizer) -> Known | None:
        """In an update that is recorded: what is known of this optimizer. None while a CUDA graph records it."""
        on_device = torch.cuda.is_initialized() and any(  # type: ignore[no-untyped-call]
            p.is_cuda for g in optimizer.param_groups for p in g["params"]
        )
        if on_device and torch.cuda.is_current_stream_capturing():
            return None
        name, held = self._steps.named(optimizer)
        known = Known(name, held, self._measures.of(name, optimizer), on_device)
        if on_device and self._clock is None:
            self._clock = DeviceClock()
        self._known[id(optimizer)] = known
        self._origin.step_comes()
        return known

    # -- after the step ----------------------------------------------------------------------------------------

    def _ends(self, call: StepCall) -> None:
        if self._fuse.off:
            return
        optimizer, guard = call.optimizer, self._guard
        if self._started:
            self._draft.seconds["step"] += now() - self._started - self._closure.seconds
        self._stepped = True
        self._draft.in_closure = False
        try:
            held_back = (guard.holds and guard.release(optimizer)) or self._parts_held
            self._parts_held = False
            if self._scalers.stepping is not None:
                found = getattr(optimizer, "found_inf", None)
                if isinstance(found, Tensor) and found.device.type == "cpu":
                    held_back = held_back or bool(found.item())  # a fused step that applied nothing
            self._done(optimizer, call, held_back)
        except Exception as error:
            self._fuse.fail(error)

    def _part_begins(self, call: StepPart) -> None:
        """Another part of the step in progress: other parameters, and a look at their gradients."""
        known = self._known.get(id(call.optimizer))
        if known is None or self._fuse.off:
            return
        try:
            self._guard.look(call.optimizer, self._progress.counts.get(known.name, 0), known.held)
        except GuardStop:
            raise
        except Exception as error:
            self._fuse.fail(error)

    def _part_ends(self, call: StepPart) -> None:
        if self._guard.holds and self._guard.release(call.optimizer):
            self._parts_held = True

    def _engine_ends(self, call: EngineStep) -> None:
        """An engine that met an infinity has not stepped at all."""
        if not call.applied and isinstance(call.optimizer, torch.optim.Optimizer):
            self._done(call.optimizer, call, True)

    def _scaler_begins(self, call: ScalerStepCall) -> None:
        self._scalers.name(call.scaler)
        self._scalers.stepping = call.scaler
        self._stepped = False

    def _scaler_ends(self, call: ScalerStepCall) -> None:
        try:
            if not call.raised and not self._stepped:
                # the scaler met an infinity and did not call step at all
                self._done(inner_of(call.optimizer), call, True)
        finally:
            self._scalers.stepping = None

    def _done(self, optimizer: torch.optim.Optimizer, call: Call, skipped: Any) -> None:
        routine, progress, draft, guard = self._routine, self._progress, self._draft, self._guard
        again = None
        if not skipped:
            frame = call.frame
            key = ("step", id(optimizer), id(frame.f_code), frame.f_lasti, self._closure.given)
            if routine.resting and routine.keys[routine.at] == key:
                again = routine.events[routine.at]
                routine.at += 1
            else:
                routine.differs(key)
        progress.steps += 1
        event = again or self._steps.record(optimizer, call, skipped, self._closure.computes)
        routine.stepped(progress.steps)
        name = event.optimizer or ""
        counts = progress.counts
        index = counts.get(name, 0)
        if len(counts) > 1:
            counts.pop(name, None)
        counts[name] = index + 1
        rate = learning_rate(optimizer) if draft.rate is None else draft.rate
        last, last_rate = self._last_step
        calm = self._origin.calm and guard.norm is None
        if not skipped and not (calm and event is last and rate == last_rate):
            self._last_step = (event, rate)
            self._origin.after_step(optimizer, index, event, rate, guard.recent)
        if progress.steps % MEMORY_EVERY == 1:
            self._memory = live_bytes()
        losses = draft.losses
        progress.micro_batches = max(1, len(losses))
        loss = losses[0] if len(losses) == 1 else mean_of(losses)
        (norm, threshold), scale, flag = draft.clip, draft.scale, guard.flag
        parts: Any = draft.parts(now())
        if self._clock is not None:
            self._spikes.drawn(name, index)
            parts = self._device_parts(self._clock, parts)
        measured: Any = guard.norm
        if loss.__class__ is float and flag is None:
            scale = None if scale is None else as_it_is(scale)
            norm = None if norm is None else as_it_is(norm)
        else:
            values = [loss, scale, norm, measured, flag]
            loss, scale, norm, measured, answer = as_they_are(values)
            if isinstance(answer, Number):
                skipped = answer
                held = event.parameter_set
                guard.sent(index, held or 0, answer, loss if isinstance(loss, Number) else None)
        recording, graphs = self._recording, self._graphs
        fields = (
            index,
            name,
            event.at,
            draft.loss_at,
            time(),
            loss,
            rate,
            scale,
            skipped,
            norm,
            threshold,
            measured,
            parts,
            self._memory,
            getrefcount(graphs.anchor) - graphs.others,  # graphs.alive
            progress.micro_batches,
            draft.all_reduces if recording.world > 1 else None,
            draft.clip_at,
            draft.batch_at,
        )
        recorder = recording.recorder or recording.open()
        if index == 0 and self._closure.given and self._closure.evaluations > 1:
            self._measures.evaluated(name, optimizer, self._closure)
        numbers = self._measures.numbers.get(name)
        if numbers is None or not numbers.waits:
            recorder.note(fields)
        else:
            row = UpdateRow(*fields)
            if skipped is True:
                numbers.skipped()
            else:
                numbers.after_step(row)
            recorder.update(row)
        draft.clear()
        self._started = 0.0
        self._origin.window_lost = False
        if again is None:
            self._after()
        self._duty.stepped(call, optimizer, again is not None, self._closure.given)

    def _device_parts(self, clock: DeviceClock, seconds: dict[str, float]) -> Any:
        """The parts of the update that has ended, as the device came to them; nothing where they were not marked."""
        spans = None
        if self._draft.clock is not None:
            spans = clock.end()
            self._untimed = clock.rests(sum(seconds.values())) + 1
        self._untimed -= 1
        self._draft.clock = clock if self._untimed <= 0 else None
        if self._draft.clock is not None:
            clock.begin()
        return spans or {}


def _clear(events: list[Event]) -> bool:
    """Whether gradients are cleared among these, or written by hand."""
    return any(isinstance(event, ZeroGrad | GradWrite) for event in events)


def mean_of(losses: list[Any]) -> Any:
    """Of a window's losses, on the device where they are."""
    if len(losses) <= 1:
        return losses[0] if losses else None
    if set(map(type, losses)) == {float}:
        return sum(losses) / len(losses)
    if any(not isinstance(x, Tensor) or x.device != losses[0].device for x in losses):
        return losses[-1]
    with torch.no_grad():
        return torch.stack([loss.float().reshape(()) for loss in losses]).mean()
