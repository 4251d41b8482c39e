"""Events of forward passes: which model is called, in which mode, and whether its result reaches a backward."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from time import perf_counter as now
from types import FrameType
from typing import Any

import torch
from torch import nn

from fallline.events import Event, Forward
from fallline.replay.modules import name_in, unwrap, wrapper_of
from fallline.taps.frames import Place
from fallline.taps.modules import FORWARD, WRAPPED, ForwardCall, ModuleWrapped
from fallline.taps.tap import Subscription
from fallline.watcher.emit import Emitter, spot
from fallline.watcher.facts import autocast_dtype, first_tensor
from fallline.watcher.fuse import Fuse
from fallline.watcher.kept import KeptGraphs
from fallline.watcher.loss import root_marker
from fallline.watcher.memory import LiveGraphs
from fallline.watcher.objects import Objects, has_mode
from fallline.watcher.origin import Origin
from fallline.watcher.progress import Draft, Progress
from fallline.watcher.routine import Routine
from fallline.watcher.running_statistics import RunningStatistics
from fallline.watcher.window import Window
from fallline.watcher.wrappers import Wrappers

__all__ = ["MARK", "Forwards", "any_autocast"]

MARK = "fallline.forward"
# Whether autocast is on for any device. Private, and for years what torch's own checkpointing asks.
any_autocast: Callable[[], bool] = getattr(
    torch._C,
    "_is_any_autocast_enabled",
    lambda: torch.is_autocast_enabled() or torch.is_autocast_enabled("cpu"),
)


class Mark:
    """Left on the graph of a forward pass; dies with it."""

    __slots__ = ("__weakref__", "event")

    def __init__(self, event: Forward) -> None:
        self.event = event

    def __del__(self) -> None:
        if self.event.used is None:  # no backward has reached it
            self.event.used = False


class Forwards:
    """The calls of whole models."""

    def __init__(
        self,
        emitter: Emitter,
        routine: Routine,
        objects: Objects,
        window: Window,
        wrappers: Wrappers,
        progress: Progress,
        draft: Draft,
        origin: Origin,
        graphs: LiveGraphs,
        kept: KeptGraphs,
        statistics: RunningStatistics,
        fuse: Fuse,
    ) -> None:
        self._emitter = emitter
        self._routine = routine
        self._objects = objects
        self._window = window
        self._wrappers = wrappers
        self._progress = progress
        self._draft = draft
        self._origin = origin
        self._graphs = graphs
        self._kept = kept
        self._statistics = statistics
        self._fuse = fuse
        self._devices: dict[str, str] = {}  # of models; they stay where they train
        self._met: dict[int, tuple[weakref.ref[nn.Module], str, str | None]] = {}
        self._event: Event | None = None  # of the call in progress
        self._recorded = False  # it is not one of a well-known update
        self._started = 0.0

    def subscribe(self, taps: Subscription) -> None:
        taps.before(FORWARD, self._begins)
        taps.after(FORWARD, self._ends)
        taps.after(WRAPPED, self._fuse.guarded(self._wrapped))

    def _begins(self, call: ForwardCall) -> None:
        self._event = None
        if self._fuse.off:
            return
        module, frame, grad = call.module, call.frame, torch.is_grad_enabled()
        key = (
            "forward",
            id(module),
            id(frame.f_code),
            frame.f_lasti,
            getattr(module, "training", None),
            grad,
            any_autocast(),
            # DDP: whether the backward will all-reduce is decided here
            self._wrappers.any and getattr(module, "require_backward_grad_sync", None),
        )
        routine = self._routine
        try:
            if not routine.resting or routine.keys[routine.at] != key:
                self._recorded = True
                routine.differs(key)
                event: Event = (forward := self._record(module, call.place, frame))
                if forward.training is False:
                    self._statistics.begins(module)
                if grad:
                    device = self._devices.get(event.model or "", "cpu")
                    self._origin.before_forward(module, call.args, call.kwargs, device, frame)
            else:
                self._recorded = False
                event = routine.events[routine.at]
                routine.at += 1
                if grad:
                    device = self._devices.get(event.model or "", "cpu")
                    self._origin.forward_again(module, call.args, call.kwargs, device, frame)
            self._event = event
        except Exception as error:
            self._fuse.fail(error)
        self._started = now()
        if self._draft.clock is not None:
            self._draft.clock.mark("forward")

    def _ends(self, call: ForwardCall) -> None:
        event = self._event
        if event is None or self._fuse.off:
            return
        self._draft.seconds["forward"] += now() - self._started
        if self._draft.clock is not None:
            self._draft.clock.mark("other")
        output = call.output
        if not self._recorded:  # as LiveGraphs.note, without a call
            if isinstance(output, torch.Tensor) and output.grad_fn is not None:
                output.grad_fn.metadata["fallline"] = self._graphs.anchor  # type: ignore[index]
        elif isinstance(event, Forward):
            self._fuse.safely(self._done, event, output)

    def _record(self, module: nn.Module, where: Place | None, frame: FrameType) -> Forward:
        met = self._met.get(id(module))
        if met is None or met[0]() is not module:
            met = self._meet(module, where, frame)
        _, model, wrapper = met
        held = module if wrapper else self._wrappers.around(module)
        sync = getattr(held, "require_backward_grad_sync", None) if held is not None else None
        device = self._devices.get(model)
        if device is None or self._progress.steps < 2:
            device = next((p.device.type for p in module.parameters()), "cpu")
            self._devices[model] = device
        at, callers = spot(where)
        return self._emitter.emit(
            Forward(
                at,
                callers=callers,
                model=model,
                training=module.training or _partly_trains(module),
                grad=torch.is_grad_enabled(),
                autocast=autocast_dtype(device),
                wrapper=wrapper,
                no_sync=None if sync is None or not wrapper else not sync,
                bypass=True if wrapper is None and held is not None else None,
            )
        )

    def _meet(
        self, module: nn.Module, where: Place | None, frame: FrameType
    ) -> tuple[weakref.ref[nn.Module], str, str | None]:
        """A model is called for the first time: its name, and what it is wrapped in."""
        model = self._objects.model(module, where.at if where else None)
        called = name_in(frame, module)
        if called is not None:
            self._objects.called.setdefault(model, called)
        wrapper = wrapper_of(module)
        if wrapper in ("ddp", "fsdp1"):  # perhaps wrapped before we came
            self._wrappers.add(module)
        elif wrapper == "fsdp2":
            self._wrappers.add_sharded(unwrap(module))
        self._met[id(module)] = met = (weakref.ref(module), model, wrapper)
        return met

    def _wrapped(self, call: ModuleWrapped) -> None:
        self._wrappers.add(call.module)

    def _done(self, event: Forward, output: Any) -> None:
        if event.training is False:
            self._statistics.ends(event.at)
        if event.grad:
            self._window.add(event)
            tensor = first_tensor(output)
            if tensor is not None:
                mark = Mark(event)
                if root_marker(tensor, MARK, mark):
                    self._kept.output(mark, event)
                    event.followed = True
        self._graphs.note(output)


def _partly_trains(module: nn.Module) -> bool:
    """In eval mode, but with a part in train mode (`model.encoder.train()`) for which that matters."""
    return any(part.training and has_mode(part) for part in module.modules())
