"""One watched process: taps tell it what happens, it keeps events and numbers, and says at the end what went wrong.

The training thread only ever does what is here: note an event, read a clock, look whether numbers are finite. Judging
and writing happen in background threads. Nothing in here may raise into the program that trains.
"""

from __future__ import annotations

import os
import sys
import threading
import traceback
from collections.abc import Callable
from dataclasses import dataclass, field
from math import isfinite
from pathlib import Path
from time import perf_counter as now
from types import FrameType
from typing import Any

import torch
from torch import Tensor, nn

from fallline.engine import clipping
from fallline.engine.gradients import Parameters
from fallline.events import Event
from fallline.finding import Finding
from fallline.taps.backward import BACKWARD, GRADIENTS_TAKEN, BackwardCall
from fallline.taps.clipping import CLIP, ClipCall, tap_clip
from fallline.taps.data import BATCH, EPOCH, EXHAUSTED, SAMPLER_EPOCH, SAMPLER_MADE, BatchCall
from fallline.taps.gradients import GRADIENT_READ, GRADIENT_WRITTEN
from fallline.taps.modes import ANOMALY, AUTOCAST_OFF, CHECKPOINT, TRAIN
from fallline.taps.modules import FORWARD, MODULE_MADE, MODULE_REGISTERED, WRAPPED, ForwardCall
from fallline.taps.optimizers import CLOSURE, OPTIMIZER_MADE, PARAMETERS_ADDED, STEP, ZERO_GRAD
from fallline.taps.patches import Patches
from fallline.taps.scaling import (
    SCALE,
    SCALER_STEP,
    SCALER_UPDATE,
    UNSCALE,
    ScaleCall,
    ScalerStepCall,
)
from fallline.taps.schedulers import SCHEDULER_STEP
from fallline.taps.tap import Subscription, Topic
from fallline.taps.waits import WAIT
from fallline.watcher.guard import Guard
from fallline.watcher.hand_updates import HandUpdates
from fallline.watcher.live import Live
from fallline.watcher.log import EventLog
from fallline.watcher.origin import Origin
from fallline.watcher.recorder import Recorder
from fallline.watcher.routine import Routine
from fallline.watcher.taps_facts import inner_of
from fallline.watcher.updates import Updates

__all__ = ["Options", "Session"]

# Whether autocast is on for any device. Private, and for years what torch's own checkpointing asks.
_autocast: Callable[[], bool] = getattr(
    torch._C,
    "_is_any_autocast_enabled",
    lambda: torch.is_autocast_enabled() or torch.is_autocast_enabled("cpu"),
)


@dataclass(slots=True)
class Options:
    """What `fallline run` or `fallline.watch` was asked for."""

    out: Path
    budget: float = 0.01
    guard: str = "skip"
    meta: dict[str, Any] = field(default_factory=dict)


class Session(Updates):
    """Watches this process. `start` puts the taps in place, `finish` takes them away and hands over the findings."""

    def __init__(self, options: Options) -> None:
        super().__init__()
        self.options = options
        self.pid = os.getpid()
        self.guard = Guard(self, options.guard)
        self.origin = Origin(self)
        self.recorder: Recorder | None = None
        self.live: Live | None = None  # says what is found while the run goes on
        self.loggers: Any = None  # a LogThread, where numbers go to other tools as well
        self.rank, self.world = rank_and_world()
        self.failed: str | None = None
        self.forked = False
        self._unscaled: Any = None
        self._clipping: Event | None = None
        self._waited_since = 0.0
        self._opening = threading.Lock()
        self._judge = _Judge(self)
        self.hand_updates = HandUpdates(self.open, self.safely)
        self._forward: Event | None = None  # the model call in progress
        self._backward: Event | None = None
        self._recorded = False  # it is not one of a well-known update
        self._started = 0.0

    # -- life --------------------------------------------------------------------------------------------------

    def start(self, *, rebind: bool = False) -> None:
        self.taps = subscription(self, rebind=rebind)
        self.taps.start()
        self.hand_updates.start()
        # fallline.clip_grad_norm_ is a clip like torch's; it also takes models and optimizers
        self._clip_taps = Patches(rebind=rebind)
        tap_clip(
            self._clip_taps, clipping, "clip_grad_norm_", "norm", "max_norm", _of_engine, _in_parts
        )
        os.register_at_fork(after_in_child=self._forked)

    def _forked(self) -> None:
        """In a forked child: most likely a loader's worker, of which nothing is ours to watch."""
        self.off = self.forked = True
        self.hand_updates.stop()

    def wake(self) -> None:
        """A forked child steps an optimizer: it trains, and is a run of its own."""
        from fallline.watcher.launch_run import forked

        self.pid = os.getpid()
        self.log = EventLog()
        self.routine = Routine(self)
        self._lock, self._opening = threading.Lock(), threading.Lock()
        self._judge = _Judge(self)
        self._early = []
        self.recorder = self.live = self.loggers = None
        self.counts, self._numbers, self._known, self.steps = {}, {}, {}, 0
        self.off = self.forked = False
        forked(self)

    def finish(self, status: str = "finished") -> None:
        """Take the taps away, judge what was seen, write it down."""
        if os.getpid() != self.pid:
            return
        self.off = True
        self.taps.stop()
        self.safely(self.hand_updates.finish)
        self._clip_taps.remove()
        self.safely(self.owners.look)
        self.safely(self.guard.settle, True)
        self.safely(self._judge.finish, status in ("finished", "exit 0"))
        if self.recorder is not None:
            self.recorder.describe(
                "guard", {"mode": self.guard.mode, "skipped": self.guard.skipped}
            )
            self.recorder.close(status)

    @property
    def findings(self) -> list[Finding]:
        """What the rules over events have found so far."""
        return self._judge.findings

    def safely(self, handler: Callable[..., Any], *args: Any) -> Any:
        """Run our own part. When it fails the taps fall silent, stderr says so once, and training goes on."""
        try:
            return handler(*args)
        except GuardStop:
            raise
        except Exception as error:
            self.fail(error)
            return None

    def fail(self, error: Exception) -> None:
        """Our own part has failed."""
        self.off = True
        if self.failed is None:
            self.failed = "".join(traceback.format_exception(error))
            line = f"fallline: the watcher failed ({type(error).__name__}: {error}) and is off; training goes on"
            print(line, file=sys.stderr)
            if os.environ.get("FALLLINE_DEBUG"):
                print(self.failed, file=sys.stderr)

    def open(self) -> Recorder:
        """The recorder; made at the first update, so that a program that trains nothing leaves nothing behind."""
        with self._opening:
            return self._open()

    def _open(self) -> Recorder:
        if self.recorder is None:
            self.rank, self.world = rank_and_world()
            self.recorder = Recorder(
                self.options.out,
                self.rank,
                self.world,
                self.options.meta | accelerator(),
                listen=self._judge.listen,
            )
            if self.loggers is not None and self.rank == 0:
                self.loggers.begin(self.recorder.folder)
        return self.recorder

    def parameters_added(self, call: Any) -> None:
        """An optimizer was made or got more parameters: what is known of it is no longer so."""
        self._known.clear()
        self.routine.forget()

    # -- what the taps publish ---------------------------------------------------------------------------------

    def forward_begins(self, call: ForwardCall) -> None:
        self._forward = None
        if self.off:
            return
        module, frame, grad = call.module, call.frame, torch.is_grad_enabled()
        key = (
            "forward",
            id(module),
            id(frame.f_code),
            frame.f_lasti,
            getattr(module, "training", None),
            grad,
            _autocast(),
        )
        routine = self.routine
        self._recorded = not routine.resting or routine.keys[routine.at] != key
        try:
            if self._recorded:
                routine.differs(key)
                event = self.forward_event(module, call.place)
                if grad:
                    self.origin.before_forward(module, call.args, call.kwargs, event, frame)
            else:
                event = routine.events[routine.at]
                routine.at += 1
                if grad:
                    self.origin.forward_again(module, call.args, call.kwargs, event, frame)
            self._forward = event
        except Exception as error:
            self.fail(error)
        self._started = now()

    def forward_ends(self, call: ForwardCall) -> None:
        event = self._forward
        if event is None or self.off:
            return
        self.seconds["forward"] += now() - self._started
        if self._recorded:
            self.safely(self.forward_done, event, call.output)
            self.safely(self.graphs.note, call.output)

    def backward_begins(self, call: BackwardCall) -> None:
        self._backward = None
        if self.off:
            return
        frame, loss, kwargs = call.frame, call.loss, call.kwargs
        key = (
            "backward",
            kwargs.get("retain_graph") if kwargs else None,
            id(frame.f_code),
            frame.f_lasti,
            _autocast(),
        )
        routine = self.routine
        recorded = not routine.resting or routine.keys[routine.at] != key
        try:
            if self._early is not None:
                self.trainer_known()
            if recorded:
                routine.differs(key)
                event = self.backward_event(loss, call)
            else:
                event = routine.events[routine.at]
                routine.at += 1
            self._loss_at = event.at
            if isinstance(loss, Tensor) and (recorded or not self._goes_again(loss, event, frame)):
                self.graphs.note(loss)
                number = self._value_of(loss, event)
                if number is not None:
                    self._losses.append(number)
                self.origin.before_backward(loss, number, event, frame, recorded)
            self._backward = event
        except Exception as error:
            self.fail(error)
        self._started = now()

    def backward_ends(self, call: BackwardCall) -> None:
        if self._backward is None or self.off:
            return
        self.seconds["backward"] += now() - self._started
        # in an update that goes like the last one the guard's look may come next
        if not (self.origin.guard_follows and self.routine.resting):
            self.safely(self.origin.after_backward, self._backward)

    def _goes_again(self, loss: Tensor, event: Event, frame: FrameType) -> bool:
        """What `backward` does for a finite loss of a CPU in a well-known update, in one place."""
        origin = self.origin
        capture, node = origin.capture, loss.grad_fn
        if capture is None or capture.random is not None or node is None:
            return False
        if self._unscaled is not None or not loss.is_cpu:
            return False
        try:
            number = loss.item()
        except RuntimeError:  # several numbers
            return False
        if number.__class__ is not float or not isfinite(number):
            return False
        node.metadata["fallline"] = self.graphs.anchor  # type: ignore[index]
        self._losses.append(number)
        capture.end(frame, False)
        origin.latest, origin.lost = event, False
        return True

    def _value_of(self, loss: Tensor, event: Event) -> float | Tensor | None:
        """Of a loss that is one number: on an accelerator it stays there."""
        if self._unscaled is not None:
            if event.facts.get("scaled"):
                loss = self._unscaled
            self._unscaled = None
        if loss.is_cpu:
            try:
                value = loss.item()
            except RuntimeError:  # several numbers
                return None
            return value if isinstance(value, float) else None
        one = loss.numel() == 1 and loss.is_floating_point() and not loss.is_meta
        return loss.detach() if one else None

    def clip_begins(self, call: ClipCall) -> None:
        self._clipping = self.safely(self.clip_event, call) if not self.off else None

    def clip_ends(self, call: ClipCall) -> None:
        event, norm = self._clipping, call.result
        if event is not None and call.how == "norm" and isinstance(norm, Tensor):
            limit = call.threshold if isinstance(call.threshold, int | float) else None
            known = event.facts.get(
                "threshold"
            )  # of the last time it was recorded, if this is another
            self._clip = (norm, known if limit is None else float(limit))
            if not self.off:
                self.safely(self.guard.clipped, norm, event)

    def scaled(self, call: ScaleCall) -> None:
        if self.off:
            return
        super().scaled(call)
        self._scale = call.scaler._scale
        if isinstance(call.outputs, Tensor):
            self._unscaled = call.outputs.detach()

    def scaler_step_begins(self, call: ScalerStepCall) -> None:
        if self.off:
            return
        self.scaler_id(call.scaler)
        self.scaler_stepping = call.scaler
        self._stepped = False

    def scaler_step_ends(self, call: ScalerStepCall) -> None:
        if not call.raised and not self._stepped and not self.off:
            # the scaler met an infinity and did not call step at all
            self.safely(self._step_done, inner_of(call.optimizer), call, True)
        self.scaler_stepping = None

    def batch_begins(self, call: BatchCall) -> None:
        self._waited_since = now()

    def batch_ends(self, call: BatchCall) -> None:
        if not self.off:
            self.seconds["data"] += now() - self._waited_since
            self.safely(self.batch_event, call)


def subscription(session: Session, *, rebind: bool) -> Subscription:
    """Everything that a watched run listens to."""
    taps = Subscription(rebind=rebind)
    taps.before(FORWARD, session.forward_begins)
    taps.after(FORWARD, session.forward_ends)
    taps.before(BACKWARD, session.backward_begins)
    taps.after(BACKWARD, session.backward_ends)
    taps.before(STEP, session.before_step)
    taps.after(STEP, session.after_step)
    taps.before(CLIP, session.clip_begins)
    taps.after(CLIP, session.clip_ends)
    taps.before(BATCH, session.batch_begins)
    taps.after(BATCH, session.batch_ends)
    taps.after(SCALE, session.scaled)
    taps.before(SCALER_STEP, session.scaler_step_begins)
    taps.after(SCALER_STEP, session.scaler_step_ends)

    def on(add: Any, topic: Topic[Any], handler: Callable[[Any], Any]) -> None:
        def safely(call: Any) -> None:
            if not session.off:
                session.safely(handler, call)

        add(topic, safely)

    on(taps.before, CLOSURE, session.closure_begins)
    on(taps.after, CLOSURE, session.closure_ends)
    on(taps.before, GRADIENTS_TAKEN, session.gradients_taken)
    on(taps.before, ZERO_GRAD, session.zero_grad)
    on(taps.before, PARAMETERS_ADDED, session.parameters_added)
    on(taps.after, OPTIMIZER_MADE, session.optimizer_made)
    on(taps.before, UNSCALE, session.unscale)
    on(taps.before, SCALER_UPDATE, session.scaler_update)
    on(taps.before, SCHEDULER_STEP, session.scheduler_step)
    on(taps.after, WRAPPED, session.wrapped)
    on(taps.before, TRAIN, session.mode)
    on(taps.before, CHECKPOINT, session.checkpointed)
    on(taps.before, ANOMALY, session.anomaly)
    on(taps.before, AUTOCAST_OFF, session.autocast_off)
    on(taps.after, AUTOCAST_OFF, session.autocast_on_again)
    on(taps.after, EPOCH, session.epoch)
    on(taps.after, EXHAUSTED, session.epoch_end)
    on(taps.after, SAMPLER_MADE, session.sampler_made)
    on(taps.before, SAMPLER_EPOCH, session.sampler_epoch)
    on(taps.after, MODULE_MADE, session.owners.module_made)
    on(taps.before, MODULE_REGISTERED, session.owners.registered)
    on(taps.before, GRADIENT_READ, session.by_hand.read)
    on(taps.before, GRADIENT_WRITTEN, session.by_hand.written)
    on(taps.before, WAIT, session.waits)
    return taps


def _of_engine(parameters: Any) -> tuple[Any, list[Tensor]]:
    if not isinstance(parameters, Tensor | nn.Module | torch.optim.Optimizer):
        parameters = list(parameters)
    return parameters, Parameters.of(parameters).tensors


def _in_parts(kwargs: dict[str, Any]) -> bool:
    """Per group or layer: not one clip."""
    return bool(kwargs.get("per", "all") != "all")


def accelerator() -> dict[str, str]:
    """The device's name, once the script itself has woken it: doing that for it would break its forks."""
    return {"accelerator": torch.cuda.get_device_name()} if torch.cuda.is_initialized() else {}  # type: ignore[no-untyped-call]


def rank_and_world() -> tuple[int, int]:
    """Of the process group where there is one, else what the launcher says."""
    distributed = torch.distributed
    if distributed.is_available() and distributed.is_initialized():
        return distributed.get_rank(), distributed.get_world_size()
    try:
        return int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1))
    except ValueError:
        return 0, 1


from fallline.watcher.guard import GuardStop  # noqa: E402
from fallline.watcher.judge import Judge as _Judge  # noqa: E402
