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
from sys import _getframe
from threading import get_ident
from time import perf_counter as now
from types import FrameType
from typing import Any

import torch
from torch import Tensor, nn

from fallline.events import Event
from fallline.finding import Finding
from fallline.watcher.frames import place
from fallline.watcher.guard import Guard
from fallline.watcher.live import Live
from fallline.watcher.log import EventLog
from fallline.watcher.origin import Origin
from fallline.watcher.owner import Owner
from fallline.watcher.recorder import Recorder
from fallline.watcher.routine import Routine
from fallline.watcher.taps import Taps
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
        self.taps = Taps(self)
        self.guard = Guard(self, options.guard)
        self.origin = Origin(self)
        self.recorder: Recorder | None = None
        self.live: Live | None = None  # says what is found while the run goes on
        self.loggers: Any = None  # a LogThread, where numbers go to other tools as well
        self.rank, self.world = rank_and_world()
        self.failed: str | None = None
        self.forked = False
        self._unscaled: Any = None
        self._opening = threading.Lock()
        self._judge = _Judge(self)

    # -- life --------------------------------------------------------------------------------------------------

    def start(self, *, rebind: bool = False) -> None:
        self.taps.install(rebind=rebind)
        os.register_at_fork(after_in_child=self._forked)

    def _forked(self) -> None:
        """In a forked child: most likely a loader's worker, of which nothing is ours to watch."""
        self.off = self.forked = True

    def wake(self) -> None:
        """A forked child steps an optimizer: it trains, and is a run of its own."""
        from fallline.watcher.launch_run import forked

        self.pid = os.getpid()
        self.log = EventLog()
        self.routine = Routine(self)
        self._lock, self._opening, self.owner = threading.Lock(), threading.Lock(), Owner()
        self._judge = _Judge(self)
        self.recorder = self.live = self.loggers = None
        self.counts, self._numbers, self._known, self.steps = {}, {}, {}, 0
        self.off = self.forked = False
        forked(self)

    def finish(self, status: str = "finished") -> None:
        """Take the taps away, judge what was seen, write it down."""
        if os.getpid() != self.pid:
            return
        self.off = True
        self.taps.remove()
        self.owner.ident = None  # whichever thread trained, this one concludes
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
        if self.owner.ident != get_ident() and self.owner.keeps_out():
            return None
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

    def parameters_added(self) -> None:
        """An optimizer was made or got more parameters: what is known of it is no longer so."""
        self._known.clear()
        self.routine.forget()

    # -- what the taps tell ------------------------------------------------------------------------------------

    def forward(
        self, original: Callable[..., Any], module: nn.Module, args: Any, kwargs: Any
    ) -> Any:
        # a loss, or another module without parameters: what it calls may be a model
        if id(module) in self._without and self.holds_nothing(module):
            return original(module, *args, **kwargs)
        try:
            frame = _getframe(2)
        except ValueError:  # called from no Python at all
            frame = _getframe()
        key = (
            "forward",
            id(module),
            id(frame.f_code),
            frame.f_lasti,
            get_ident(),
            getattr(module, "training", None),
            torch.is_grad_enabled(),
            _autocast(),
        )
        routine = self.routine
        told = not routine.resting or routine.keys[routine.at] != key
        if told and self.owner.ident != key[4] and self.owner.keeps_out():
            return original(module, *args, **kwargs)
        self.inside = True
        try:
            event = None
            try:
                if told:
                    routine.differs(key)
                    event = self.forward_event(module)
                    if event is not None and key[6]:
                        self.origin.before_forward(module, args, kwargs, event, frame)
                else:
                    event = routine.events[routine.at]
                    routine.at += 1
                    if key[6]:
                        self.origin.forward_again(module, args, kwargs, event, frame)
            except Exception as error:
                self.fail(error)
                event = None
            if event is None:
                self.inside = False
                return original(module, *args, **kwargs)
            started = now()
            output = original(module, *args, **kwargs)
            self.seconds["forward"] += now() - started
            if told and not self.off:
                self.safely(self.forward_done, event, output)
                self.safely(self.graphs.note, output)
            return output
        finally:
            self.inside = False

    def backward(
        self,
        original: Callable[..., Any],
        names: tuple[str, ...],
        tensors: Any,
        loss: Any,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> Any:
        """`names`: of the arguments after `tensors`, of which `loss` is the first."""
        try:
            frame = _getframe(2)
        except ValueError:
            frame = _getframe()
        key = (
            "backward",
            kwargs.get("retain_graph") if kwargs else None,
            id(frame.f_code),
            frame.f_lasti,
            get_ident(),
            _autocast(),
        )
        routine, event = self.routine, None
        told = not routine.resting or routine.keys[routine.at] != key
        if told and self.owner.ident != key[4]:
            if self.owner.ident is None:
                self.trainer_known()
            elif self.owner.keeps_out(backward=True):
                return original(tensors, *args, **kwargs)
        try:
            if told:
                routine.differs(key)
                event = self.backward_event(loss, dict(zip(names, args, strict=False)) | kwargs)
            else:
                event = routine.events[routine.at]
                routine.at += 1
            self._loss_at = event.at
            if isinstance(loss, Tensor) and (told or not self._goes_again(loss, event, frame)):
                self.graphs.note(loss)
                number = self._value_of(loss, event)
                if number is not None:
                    self._losses.append(number)
                self.origin.before_backward(loss, number, event, frame, told)
        except Exception as error:
            self.fail(error)
        started = now()
        outer, self.in_backward = self.in_backward, True
        try:
            return original(tensors, *args, **kwargs)
        finally:
            self.in_backward = outer
            self.seconds["backward"] += now() - started
            # in an update that goes like the last one the guard's look may come next
            if event is not None and not (self.origin.guard_follows and routine.resting):
                self.safely(self.origin.after_backward, event)

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

    def clip(self, run: Callable[[], Any], parameters: Any, how: str, threshold: Any) -> Any:
        event = self.safely(self.clip_event, parameters, how, threshold)
        self.in_clip = True
        try:
            result = run()
        finally:
            self.in_clip = False
        if event is not None and how == "norm" and isinstance(result, Tensor):
            limit = threshold if isinstance(threshold, int | float) else None
            known = event.facts.get("threshold")  # of the last time it was told, if this is another
            self._clip = (result, known if limit is None else float(limit))
            if not self.off:
                self.safely(self.guard.clipped, result, event)
        return result

    def scaled(self, scaler: Any, outputs: Any) -> None:
        super().scaled(scaler, outputs)
        self._scale = scaler._scale
        if isinstance(outputs, Tensor):
            self._unscaled = outputs.detach()

    def scaler_step(self, run: Callable[[], Any], scaler: Any, optimizer: Any) -> Any:
        self.scaler_id(scaler)
        outer, self.scaler_stepping = self.scaler_stepping, scaler
        self._stepped = False
        try:
            result = run()
        finally:
            stepped, self.scaler_stepping = self._stepped, outer
        if not stepped and not self.off:
            # the scaler met an infinity and did not call step at all
            self.scaler_stepping = scaler
            self.safely(self._step_done, inner_of(optimizer), True)
            self.scaler_stepping = outer
        return result

    def batch(self, original: Callable[..., Any], iterator: Any) -> Any:
        started = now()
        try:
            found = original(iterator)
        except StopIteration:
            self.safely(self.epoch_end, iterator, place(2))
            raise
        self.seconds["data"] += now() - started
        self.safely(self.batch_event, iterator)
        return found


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
