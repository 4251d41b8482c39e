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
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from fallline.event import Event, Kind, Location
from fallline.finding import Finding
from fallline.watcher.frames import place
from fallline.watcher.guard import Guard
from fallline.watcher.live import LiveLine
from fallline.watcher.log import EventLog
from fallline.watcher.memory import LiveGraphs, live_bytes
from fallline.watcher.numbers import Numbers, describe_parameters
from fallline.watcher.objects import learning_rate
from fallline.watcher.origin import Origin
from fallline.watcher.recorder import Recorder, UpdateRow
from fallline.watcher.routine import Routine
from fallline.watcher.samples import ParameterInfo
from fallline.watcher.taps import Taps
from fallline.watcher.taps_events import SPANS, Teller
from fallline.watcher.taps_facts import autocast_dtype, inner_of, now

__all__ = ["Options", "Session"]

MEMORY_EVERY = 16


@dataclass(slots=True)
class Options:
    """What `fallline run` or `fallline.watch` was asked for."""

    out: Path
    budget: float = 0.01
    guard: str = "skip"
    meta: dict[str, Any] = field(default_factory=dict)


class Session(Teller):
    """Watches this process. `start` puts the taps in place, `finish` takes them away and hands over the findings."""

    def __init__(self, options: Options) -> None:
        super().__init__()
        self.options = options
        self.pid = os.getpid()
        self.taps = Taps(self)
        self.guard = Guard(self, options.guard)
        self.origin = Origin(self)
        self.recorder: Recorder | None = None
        self.live: LiveLine | None = None  # where a person looks at a terminal
        self.loggers: Any = None  # a LogThread, where numbers go to other tools as well
        self.graphs = LiveGraphs()
        self.rank, self.world = rank_and_world()
        self.counts: dict[str, int] = {}  # updates by optimizer
        self.micro_batches = 0  # of the last update
        self.failed: str | None = None
        self.forked = False
        self._numbers: dict[str, tuple[int, Numbers]] = {}
        self._losses: list[Any] = []
        self._loss_at: Location | None = None
        self._clip: dict[str, Any] = {}
        self._scale: Any = None
        self._unscaled: Any = None
        self._step_started = 0.0
        self._closure = False
        self._stepped = False
        self._memory: int | None = None
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
        self._lock = threading.Lock()
        self._judge = _Judge(self)
        self.recorder = self.live = self.loggers = None
        self.counts, self._numbers, self.steps = {}, {}, 0
        self.off = self.forked = False
        forked(self)

    def finish(self, status: str = "finished") -> None:
        """Take the taps away, judge what was seen, write it down."""
        if os.getpid() != self.pid:
            return
        self.off = True
        self.taps.remove()
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
            self.off = True
            if self.failed is None:
                self.failed = "".join(traceback.format_exception(error))
                line = f"fallline: the watcher failed ({type(error).__name__}: {error}) and is off; training goes on"
                print(line, file=sys.stderr)
                if os.environ.get("FALLLINE_DEBUG"):
                    print(self.failed, file=sys.stderr)
            return None

    def open(self) -> Recorder:
        """The recorder; made at the first update, so that a program that trains nothing leaves nothing behind."""
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

    # -- what the taps tell ------------------------------------------------------------------------------------

    def forward(
        self, original: Callable[..., Any], module: nn.Module, args: Any, kwargs: Any
    ) -> Any:
        self.inside = True
        try:
            event = self.safely(self._before_forward, module, args, kwargs)
            told = not self.routine.resting
            if event is None:
                self.inside = (
                    False  # a loss, or a module without parameters: what it calls may be a model
                )
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

    def _before_forward(self, module: nn.Module, args: Any, kwargs: Any) -> Event | None:
        if self.holds_nothing(module):
            return None
        event = self.routine.expected(
            Kind.FORWARD, module, 5, module.training, torch.is_grad_enabled()
        )
        if event is None:
            event = self.forward_event(module)
        if event is not None and event.facts["grad"]:
            self.origin.before_forward(module, args, kwargs, event)
        return event

    def backward(self, run: Callable[[], Any], loss: Any, named: dict[str, Any]) -> Any:
        event = self.safely(self._before_backward, loss, named)
        started = now()
        outer, self.in_backward = self.in_backward, True
        try:
            return run()
        finally:
            self.in_backward = outer
            self.seconds["backward"] += now() - started
            if event is not None and not self.off:
                self.safely(self.origin.after_backward, event)

    def _before_backward(self, loss: Any, named: dict[str, Any]) -> Event:
        event = self.routine.expected(Kind.BACKWARD, None, 5)
        if event is None:
            event = self.backward_event(loss, named)
        value = self._unscaled if event.facts.get("scaled") and self._unscaled is not None else loss
        self._unscaled = None
        self._loss_at = event.at
        self.graphs.note(loss)
        number: Any = None
        if isinstance(value, Tensor) and value.numel() == 1 and value.is_floating_point():
            number = value.item() if value.is_cpu else None if value.is_meta else value.detach()
            if number is not None:
                self._losses.append(number)
        if isinstance(loss, Tensor):
            self.origin.before_backward(loss, number, event)
        return event

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
            self._clip = {"norm": result, "threshold": known if limit is None else float(limit)}
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

    # -- the step ----------------------------------------------------------------------------------------------

    def before_step(self, optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> Any:
        self._step_started = now()
        self._closure = False
        closure = args[1] if len(args) > 1 else kwargs.get("closure")
        if not callable(closure):
            self._gradients_ready(optimizer)
            return None
        # gradients are made inside: look at them when the closure has run
        self._closure = True

        first = len(self.log.events)

        def watched() -> Any:
            # an optimizer may evaluate its closure many times (LBFGS): what counts is the last
            with self._lock:
                if len(self.log.events) > first and self.in_closure is None:
                    del self.log.events[first:]
            self.in_closure = True
            try:
                result = closure()
            finally:
                self.in_closure = None
            if not self.off:
                self.safely(self._gradients_ready, optimizer)
            return result

        if len(args) > 1:
            return (args[0], watched, *args[2:]), kwargs
        return args, {**kwargs, "closure": watched}

    def _gradients_ready(self, optimizer: torch.optim.Optimizer) -> None:
        if torch.cuda.is_initialized() and torch.cuda.is_current_stream_capturing():  # type: ignore[no-untyped-call]
            return  # a step that is being recorded into a CUDA graph: nothing may be waited for
        name = self.objects.optimizer(optimizer)
        index = self.counts.get(name, 0)
        if not self.routine.resting:
            self.origin.step_comes()
        numbers = self._numbers_of(name, optimizer)
        if numbers.due(index):
            scale = self._scale_value()
            fused = (
                getattr(optimizer, "found_inf", None) is not None
                and getattr(optimizer, "grad_scale", None) is not None
            )
            numbers.before_step(index, scale if scale is not None else 1.0, fused)
        self.guard.check(optimizer, index, self.objects.optimizer_sets[name])

    def after_step(self, optimizer: torch.optim.Optimizer) -> None:
        self._stepped = True
        self.in_closure = False
        held_back = self.guard.release(optimizer)
        found = getattr(optimizer, "found_inf", None)
        if (
            self.scaler_stepping is not None
            and isinstance(found, Tensor)
            and found.device.type == "cpu"
        ):
            held_back = held_back or bool(found.item())  # a fused step that applied nothing
        self._step_done(optimizer, held_back)

    def _step_done(self, optimizer: torch.optim.Optimizer, skipped: bool) -> None:
        again = None if skipped else self.routine.expected(Kind.STEP, optimizer, 6)
        self.steps += 1
        event = again or self.step_event(optimizer, skipped, self._closure)
        self.routine.stepped()
        name = event.optimizer or ""
        index = self.counts.get(name, 0)
        self.counts[name] = index + 1
        if not skipped:
            self.origin.after_step(optimizer, index, event)
        self.seconds["step"] += now() - self._step_started if self._step_started else 0.0
        if self.steps % MEMORY_EVERY == 1:
            self._memory = live_bytes()
        self.micro_batches = max(1, len(self._losses))
        row = UpdateRow(
            index=index,
            optimizer=name,
            at=event.at,
            loss_at=self._loss_at,
            loss=mean_of(self._losses),
            lr=learning_rate(optimizer),
            scale=self._scale,
            skipped=skipped if self.guard.flag is None else self.guard.flag,
            clip_norm=self._clip.get("norm"),
            clip_threshold=self._clip.get("threshold"),
            grad_norm=self.guard.norm,
            seconds=self.seconds,
            memory=self._memory,
            graphs=self.graphs.alive,
            micro_batches=self.micro_batches,
            all_reduces=self.all_reduces if self.world > 1 else None,
        )
        entry = self._numbers.get(name)
        if entry is not None:
            if skipped:
                entry[1].skipped()
            else:
                entry[1].after_step(row)
        self.open().update(row)
        self.seconds = dict.fromkeys(SPANS, 0.0)
        self._losses, self._clip, self._scale = [], {}, None
        self._step_started, self.all_reduces = 0.0, 0
        self.origin.window_over()
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


from fallline.watcher.guard import GuardStop  # noqa: E402
from fallline.watcher.judge import Judge as _Judge  # noqa: E402
