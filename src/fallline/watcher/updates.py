"""One update, from gradients that are complete to its row: numbers are sampled, the guard looks, the step is told.

Most updates go like the ones before them. What is done for those is kept in few functions: inside a training loop the
caches hold the user's tensors, and each function that is called has to be fetched first.
"""

from __future__ import annotations

from sys import _getframe
from threading import get_ident
from time import perf_counter as now
from time import time
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from fallline.event import Location
from fallline.watcher.guard import Guard, GuardStop
from fallline.watcher.memory import LiveGraphs, live_bytes
from fallline.watcher.numbers import Numbers, describe_parameters
from fallline.watcher.objects import learning_rate
from fallline.watcher.recorder import Recorder, UpdateRow
from fallline.watcher.samples import ParameterInfo
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


class Updates(Teller):
    """What happens around an optimizer's step. Not on its own: a part of `Session`."""

    options: Options
    guard: Guard
    origin: Origin
    recorder: Recorder | None
    world: int
    open: Callable[[], Recorder]
    safely: Callable[..., Any]
    fail: Callable[[Exception], None]
    _judge: Judge

    def __init__(self) -> None:
        super().__init__()
        self.graphs = LiveGraphs()
        self.counts: dict[str, int] = {}  # updates by optimizer
        self.micro_batches = 0  # of the last update
        self._numbers: dict[str, tuple[int, Numbers]] = {}
        # by id, while updates are well known: an optimizer's name, parameter set and numbers
        self._known: dict[int, tuple[str, int, Numbers]] = {}
        self._losses: list[Any] = []
        self._loss_at: Location | None = None
        self._clip: tuple[Any, float | None] = NO_CLIP
        self._scale: Any = None
        self._step_started = 0.0
        self._in_closure = 0.0  # seconds: what the closure of a step does has its own place
        self._closure = False
        self._stepped = False
        self._memory: int | None = None

    def before_step(self, optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> Any:
        self._closure = False
        closure = args[1] if len(args) > 1 else kwargs.get("closure")
        if closure is None or not callable(closure):
            try:
                self._gradients_ready(optimizer)
            except GuardStop:
                raise
            except Exception as error:
                self.fail(error)
            self._step_started, self._in_closure = now(), 0.0  # our own part is not the step
            return None
        self._step_started = now()
        self._in_closure = 0.0
        if self.owner.ident != get_ident() and self.owner.keeps_out():
            return None
        return self._with_closure(optimizer, closure, args, kwargs)

    def _with_closure(
        self, optimizer: torch.optim.Optimizer, closure: Any, args: Any, kwargs: Any
    ) -> Any:
        # gradients are made inside: look at them when the closure has run
        self._closure = True

        first = len(self.log.events)

        def watched() -> Any:
            # an optimizer may evaluate its closure many times (LBFGS): what counts is the last
            with self._lock:
                if len(self.log.events) > first and self.in_closure is None:
                    del self.log.events[first:]
            self.in_closure, started = True, now()
            try:
                result = closure()
            finally:
                self.in_closure = None
            if not self.off:
                self.safely(self._gradients_ready, optimizer)
            self._in_closure += now() - started
            return result

        if len(args) > 1:
            return (args[0], watched, *args[2:]), kwargs
        return args, {**kwargs, "closure": watched}

    def _gradients_ready(self, optimizer: torch.optim.Optimizer) -> None:
        if torch.cuda.is_initialized() and torch.cuda.is_current_stream_capturing():  # type: ignore[no-untyped-call]
            return  # a step that is being recorded into a CUDA graph: nothing may be waited for
        known = self._known.get(id(optimizer)) if self.routine.resting else None
        if known is None:
            if self.owner.ident != get_ident() and self.owner.keeps_out():
                return
            name = self.objects.optimizer(optimizer)
            numbers = self._numbers_of(name, optimizer)
            known = self._known[id(optimizer)] = (
                name,
                self.objects.optimizer_sets[name],
                numbers,
            )
            self.origin.step_comes()
        name, held, numbers = known
        index = self.counts.get(name, 0)
        if numbers.due(index):
            scale = self._scale_value()
            fused = (
                getattr(optimizer, "found_inf", None) is not None
                and getattr(optimizer, "grad_scale", None) is not None
            )
            numbers.before_step(index, scale if scale is not None else 1.0, fused)
        self.guard.check(optimizer, index, held)

    def after_step(self, optimizer: torch.optim.Optimizer) -> None:
        if self._known.get(id(optimizer)) is None and self.owner.ident != get_ident():
            if self.owner.keeps_out():
                return
        if self._step_started:
            self.seconds["step"] += now() - self._step_started - self._in_closure
        self._stepped = True
        self.in_closure = False
        try:
            held_back = self.guard.release(optimizer)
            if self.scaler_stepping is not None:
                found = getattr(optimizer, "found_inf", None)
                if isinstance(found, Tensor) and found.device.type == "cpu":
                    held_back = held_back or bool(found.item())  # a fused step that applied nothing
            self._step_done(optimizer, held_back)
        except Exception as error:
            self.fail(error)

    def _step_done(self, optimizer: torch.optim.Optimizer, skipped: bool) -> None:
        again = None
        if not skipped:
            try:
                frame = _getframe(4)
            except ValueError:  # called from no Python at all
                frame = _getframe()
            key = ("step", id(optimizer), id(frame.f_code), frame.f_lasti, get_ident())
            again = self.routine.comes_again(key)
            if again is None:
                self.routine.differs(key)
        self.steps += 1
        event = again or self.step_event(optimizer, skipped, self._closure)
        self.routine.stepped()
        name = event.optimizer or ""
        index = self.counts.get(name, 0)
        if len(self.counts) > 1:
            self.counts.pop(name, None)  # the one stepped last comes last
        self.counts[name] = index + 1
        rate = learning_rate(optimizer)
        if not skipped:
            self.origin.after_step(optimizer, index, event, rate)
        if self.steps % MEMORY_EVERY == 1:
            self._memory = live_bytes()
        self.micro_batches = max(1, len(self._losses))
        losses = self._losses
        row = UpdateRow(
            index,
            name,
            event.at,
            self._loss_at,
            time(),
            losses[0] if len(losses) == 1 else mean_of(losses),
            rate,
            self._scale,
            skipped if self.guard.flag is None else self.guard.flag,
            *self._clip,
            self.guard.norm,
            self.seconds,
            self._memory,
            self.graphs.alive,
            self.micro_batches,
            self.all_reduces if self.world > 1 else None,
        )
        entry = self._numbers.get(name)
        if entry is not None and entry[1].waits:
            if skipped:
                entry[1].skipped()
            else:
                entry[1].after_step(row)
        (self.recorder or self.open()).update(row)
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
            (w for m in models if (w := self.objects.described[m].facts.get("wrapper"))), None
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
