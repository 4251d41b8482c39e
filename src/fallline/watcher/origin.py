"""When a loss, gradient, parameter or input is NaN or Inf: which operation made it, in which module, at which line.

On a CPU every loss is looked at before its backward and a few small gradients after it, which costs microseconds; on an
accelerator both wait for the guard's look before the step. When something is found, the micro-batch is replayed under a
trace. What can be said without a replay is said, together with what is missing.
"""

from __future__ import annotations

import math
import weakref
from collections import deque
from types import FrameType, TracebackType
from typing import Any

import torch
from torch import Tensor, nn

from fallline.events import Backward, Clip, Event
from fallline.location import Location
from fallline.replay.again import prepare_crashed
from fallline.replay.capture import CallSites, Capture
from fallline.replay.modules import unwrap
from fallline.replay.randomness import Randomness
from fallline.replay.shards import is_finite, local
from fallline.replay.tensors import storage
from fallline.taps.frames import is_user_file, locate, user_frames
from fallline.watcher.objects import Objects
from fallline.watcher.observed import Observed
from fallline.watcher.origin_graph import from_graph
from fallline.watcher.origin_input import bad_input
from fallline.watcher.origin_parameter import ORDINARY, Stepped, blame
from fallline.watcher.origin_probes import small_parameters, small_stepped
from fallline.watcher.origin_replay import Replays
from fallline.watcher.origin_trace import Story, describe, first_bad
from fallline.watcher.progress import Progress

__all__ = ["Origin"]

# What was not finite before any operation of the forward pass.
LATE = "the device was not waited for; from here on it is, and the next one is replayed"
_CODES = {"parameter": "FL622", "buffer": "FL622", "input": "FL623"}


class Origin:
    """Watches one process for the first non-finite number, and finds where it was born."""

    def __init__(self, objects: Objects, progress: Progress, observed: Observed) -> None:
        self._objects = objects
        self._progress = progress
        self._observed = observed
        self.capture: Capture | None = None
        self._randomness = Randomness()
        self._sites = CallSites()
        self._replays = Replays(objects, progress)
        self._reported: set[Any] = set()
        self._loss: tuple[Tensor, Event] | None = None
        self.latest: Event | None = None  # the last backward
        self._last_step: Event | None = None
        self._norm: float | None = None  # of the gradients of the last step
        self.window_lost = False  # a loss of the update in progress was not finite
        self.guard_follows = False  # in updates that go like the last one
        self.lost = False  # the loss of the last backward was not finite: no news in its gradients
        # a framework's engine scales losses: a gradient that overflows is how it finds its scale
        self.engine_scales = False
        self.guarded: str | None = (
            None  # what the guard does to a bad update, where it is more than leaving it out
        )
        self.calm = False  # nothing has to be looked at after a step like the last one
        self._probes: dict[int, list[weakref.ref[Tensor]]] = {}
        # parameter → update, line, optimizer
        self._made_bad: dict[int, tuple[int, Location, str]] = {}
        self._step_probes: dict[str, tuple[int, list[Tensor]]] = {}
        self.rates: dict[str, deque[tuple[int, float]]] = {}

    # -- what is kept, and what is looked at -------------------------------------------------------------------

    def before_forward(
        self,
        module: nn.Module,
        args: Any,
        kwargs: Any,
        device: str,
        frame: FrameType,
        recorded: bool = True,
    ) -> None:
        """A model is called, from this frame."""
        capture = self.capture
        if capture is None or capture.over:
            capture = self.capture = Capture(self._randomness.before(), self._sites)
        if len(capture.calls) < 64:
            capture.add(module, args, kwargs, device, frame, recorded)

    def forward_again(
        self, module: nn.Module, args: Any, kwargs: Any, device: str, frame: FrameType
    ) -> None:
        """The same in an update that goes like the ones before it."""
        capture, random = self.capture, self._randomness
        if capture is not None and capture.random is None and capture.function is None:
            if random.rests or not capture.over:
                random.rests -= capture.over  # one for each micro-batch
                if capture.again(module, args, kwargs, frame):
                    return
        self.before_forward(module, args, kwargs, device, frame, False)

    def before_backward(
        self,
        loss: Tensor,
        value: float | Tensor | None,
        event: Event,
        frame: FrameType,
        recorded: bool,
    ) -> None:
        """`value`: of the loss, where it is one number; a tensor on an accelerator."""
        capture = self.capture
        if capture is not None:
            if not capture.over and capture.random is not None:
                self._randomness.after(capture.random)
            capture.end(frame, recorded)
        self.latest, self.lost = event, False
        if isinstance(value, float):
            if not math.isfinite(value):
                self.lost = self.window_lost = True
                self.loss_bad(loss, event)
        elif value is not None:
            self._loss = (value, event)

    def after_backward(self, event: Event) -> None:
        """A look at one or two small gradients: a NaN from any operation arrives there, and the frame is still alive."""
        scaled = self.engine_scales or (isinstance(event, Backward) and event.scaled)
        if scaled or self.lost or self._replays.enough:
            return
        for probe in self._probe():
            gradient = local(probe.grad) if probe.grad is not None else None
            if gradient is None or not gradient.is_cpu or math.isfinite(gradient.sum().item()):
                continue
            if not is_finite(gradient):
                self.gradient_bad(event, probe)
                return

    def remember_randomness(self) -> None:
        """The next micro-batch will be run again, whether or not one has drawn before."""
        self._randomness.rests = 0

    def step_comes(self) -> None:
        """Learn whether the guard's look comes while the frame of the only backward is still there: then it is enough."""
        capture = self.capture
        ends = capture.end_chain if capture is not None else ()
        frame = ends[0][0] if ends else None
        self.guard_follows = (
            frame is not None
            and self._progress.micro_batches == 1
            and any(id(f) == frame for f in user_frames())
        )

    def _probe(self) -> list[Tensor]:
        calls = self.capture.calls if self.capture is not None else ()
        model = calls[0].module() if calls else None
        if model is None:
            return []
        known = self._probes.get(id(model))
        if known is None:
            known = self._probes[id(model)] = [weakref.ref(p) for p in small_parameters(model)]
        # what any operation makes non-finite flows back to the first; where more micro-batches follow before the guard
        # looks at all of them, the last is looked at too
        chosen = known[:1] if self._progress.micro_batches == 1 else known
        return [p for ref in chosen if (p := ref()) is not None]

    def after_step(
        self,
        optimizer: torch.optim.Optimizer,
        index: int,
        event: Event,
        rate: float | None,
        norm: float | None,
    ) -> None:
        """Remember the learning rate, and the update after which a parameter was no longer finite.

        `norm`: of its gradients, where it was measured.
        """
        self._last_step, self._norm = event, norm
        name = event.optimizer or ""
        rates = self.rates.get(name)
        if rates is None:
            rates = self.rates[name] = deque(maxlen=16)
        if rate is not None and (not rates or rates[-1][1] != rate):
            rates.append((index, rate))
        # finite gradients of an ordinary size do not carry a parameter out of its range
        ordinary = norm is not None and norm < ORDINARY and rate is not None and rate < ORDINARY
        self.calm = ordinary or bool(self._made_bad)
        if self.calm:
            return
        probes = self._parameter_probes(name, optimizer)
        if not all(map(math.isfinite, map(Tensor.item, map(Tensor.sum, probes)))):
            for p in (p for g in optimizer.param_groups for p in g["params"]):
                if not is_finite(p):
                    self._made_bad[id(p)] = (index, event.at, name)

    def _parameter_probes(self, name: str, optimizer: torch.optim.Optimizer) -> list[Tensor]:
        held = self._objects.optimizer_sets[name]
        known = self._step_probes.get(name)
        if known is None or known[0] != held:
            known = self._step_probes[name] = (held, small_stepped(optimizer))
        return known[1]

    def gradients_bad(self, optimizer: torch.optim.Optimizer, index: int) -> None:
        """The guard has found a gradient that is not finite."""
        if self._loss is not None:
            (loss, event), self._loss = self._loss, None
            if not bool(torch.isfinite(loss)):  # the guard has waited for the device already
                self.loss_bad(loss, event)
                return
        if self.lost:
            return
        bad = next(
            (
                p
                for g in optimizer.param_groups
                for p in g["params"]
                if p.grad is not None and not is_finite(p.grad)
            ),
            None,
        )
        if self.latest is not None and bad is not None:
            self.gradient_bad(self.latest, bad)

    def waited(self) -> None:
        """The device has been waited for and its gradients are fine: the loss may still not be."""
        if self._loss is not None:
            (loss, event), self._loss = self._loss, None
            if not math.isfinite(loss.item()):
                self.lost = True
                self.loss_bad(loss, event)

    @property
    def last_loss(self) -> Tensor | None:
        """Of the last backward, where it is on an accelerator."""
        return self._loss[0] if self._loss is not None else None

    def noticed_late(self, index: int, finite_loss: bool, why: str = LATE) -> bool:
        """An earlier update was not finite; what that micro-batch was is gone. Whether the next such one can say more."""
        if self.latest is None or self._replays.enough:
            return False
        line = self.latest.at.line
        if ("gradient", line) in self._reported or ("site", line) in self._reported:
            return False
        if ("late", line) not in self._reported:
            self._reported.add(("late", line))
            code = "FL621" if finite_loss else "FL620"
            self._observe(code, self.latest, {"step": index, "missing": why})
        return True

    # -- what is said ------------------------------------------------------------------------------------------

    def loss_bad(self, loss: Tensor, event: Event) -> None:
        """The loss is not finite before its backward."""
        known = {"FL620", "FL622", "FL623"} & self._observed.codes
        if self._replays.enough or (known and ("site", event.at.line) in self._reported):
            return
        self._reported.add(("site", event.at.line))
        poisoned = self._poisoned()
        if poisoned is not None:
            self._observe("FL622", event, poisoned)
            return
        story, way, missing = self._replays.forward(self.capture)
        if story is None:
            story, missing = (
                from_graph(loss),
                missing or "the replay did not make it happen again",
            )
        facts: dict[str, Any] = {"value": str(float(loss.detach())), "replayed": way or None}
        if story is None:
            facts["missing"] = missing
            self._observe("FL620", event, facts)
            return
        code = _CODES.get(story.leaf or "", "FL620")
        if way != "statements" and missing and story.at is None:
            facts["missing"] = missing
        self._observe(code, event, _facts(story) | facts, story.at)

    def crashed(self, trace: TracebackType | None) -> None:
        """The script raised between model call and backward; perhaps because it saw the NaN itself."""
        capture = self.capture
        frames: list[tuple[FrameType, int]] = []
        while trace is not None:
            if is_user_file(trace.tb_frame.f_code.co_filename):
                frames.append((trace.tb_frame, trace.tb_lasti))
            trace = trace.tb_next
        known = {"FL620", "FL621", "FL622", "FL623"} & self._observed.codes
        if capture is None or capture.over or not frames or known:
            return
        replay = prepare_crashed(capture, frames)
        if replay.run is None:
            return
        story, way, missing = self._replays.story(capture, replay)
        frame, instruction = frames[-1]
        at = locate(frame.f_code, instruction, frame.f_lineno)
        facts = _facts(story) if story is not None else {"missing": missing}
        code = _CODES.get(story.leaf or "", "FL620") if story is not None else "FL620"
        seen = Backward(at)
        self._observe(
            code,
            seen,
            facts | {"value": "not finite", "replayed": way},
            story.at if story else None,
        )

    def gradient_bad(self, event: Event, parameter: Tensor) -> None:
        """The loss is finite, this parameter's gradient is not."""
        if self._replays.enough or ("gradient", event.at.line) in self._reported:
            return
        self._reported.add(("gradient", event.at.line))
        name = self._name_of(parameter)
        story, way, missing = self._replays.backward(self.capture)
        facts: dict[str, Any] = {"parameter": name, "replayed": way or None}
        if parameter.grad is not None:
            facts["gradient"] = describe(parameter.grad)
        given = bad_input(self.capture, story)
        if given is not None:  # a saturating layer kept the loss finite
            known = _facts(story) if story is not None else {}
            self._observe("FL623", event, known | facts | given, story.at if story else None)
            return
        if story is None:
            facts["missing"] = missing or "the replay did not make it happen again"
            self._observe("FL621", event, facts)
            return
        self._observe("FL621", event, _facts(story) | facts, story.at)

    def clip_spread(self, event: Clip, norm: float) -> None:
        """FL127: clipping has met a non-finite norm and made every gradient useless."""
        # after a loss that was not finite there is nothing left to spread to
        if ("clip", event.at.line) not in self._reported and not self.window_lost:
            self._reported.add(("clip", event.at.line))
            self._observe("FL127", event, {"norm": str(norm), "threshold": event.threshold})

    def _observe(
        self, code: str, event: Event, facts: dict[str, Any], at: Location | None = None
    ) -> None:
        at = at or facts.pop("at", None) or event.at
        optimizer, update = self._update(event)
        seen = {
            "step": facts.pop("step", None) if "step" in facts else update,
            "backward": f"{event.at.path}:{event.at.line}",
            "optimizer": optimizer,
            **facts,
            "guard": self.guarded if code in ("FL620", "FL621") else None,
            "learning_rate": self._rate_jump(),
        }
        self._observed.add(code, at, {k: v for k, v in seen.items() if v is not None})

    def _update(self, event: Event) -> tuple[str | None, int]:
        """The optimizer that this loss belongs to, and its update in progress, counted from 0."""
        objects, counts = self._objects, self._progress.counts
        if event.parameter_set is not None:
            reached = objects.members(event.parameter_set)
            sets = objects.optimizer_sets
            # a generator's loss reaches the critic as well: the one that has not been stepped for longest comes next. What
            # was never stepped may be one that a framework has wrapped into another.
            stepped = {sets[name] for name in counts}
            new = [n for n, held in sets.items() if n not in counts and held not in stepped]
            for name in (*new, *counts):
                if reached & objects.members(sets[name]):
                    return name, counts.get(name, 0)
        return None, self._progress.updates

    def _rate_jump(self) -> dict[str, Any] | None:
        """The learning rate was raised a hundredfold or more lately."""
        for rates in self.rates.values():
            for (_, before), (index, after) in zip(list(rates)[:-1], list(rates)[1:], strict=True):
                if before > 0 and after / before >= 100:
                    return {"update": index, "from": before, "to": after}
        return None

    def _poisoned(self) -> dict[str, Any] | None:
        """A parameter that was not finite before the forward pass began."""
        if self.capture is None:
            return None
        for model in self.capture.models:
            for name, p in unwrap(model).named_parameters():
                if p.is_floating_point() and p.layout is torch.strided and not is_finite(p):
                    return self._poisoned_facts(self._name_of(p) or name, p)
        return None

    def _poisoned_facts(self, name: str, parameter: Tensor) -> dict[str, Any]:
        facts: dict[str, Any] = {
            "parameter": name,
            "module": name.rpartition(".")[0],
            "index": first_bad(parameter.detach()),
            "result": describe(parameter),
        }
        made = self._made_bad.get(id(parameter))
        steps = self._progress.updates
        if made is not None:
            facts |= {"step": made[0], "at": made[1], "op": "step", "optimizer": made[2]}
        elif self._last_step is None and self._progress.by_hand:
            facts |= {"step": steps - 1, "at": self._progress.by_hand_at, "op": "update by hand"}
        elif steps == 0 or self._last_step is None:
            facts |= {"step": 0, "op": "init", "note": "it was there before the first update"}
        else:
            facts |= self._blame(parameter, self._last_step, steps)
        return facts

    def _blame(self, parameter: Tensor, step: Event, steps: int) -> dict[str, Any]:
        """What is known of a parameter that was finite before the last step, and is not now."""
        name, optimizer = self._owner(parameter)
        calls = self.capture.calls if self.capture is not None else []
        chain = calls[0].chain if calls else []
        call = locate(chain[0][1], chain[0][2], 0) if chain else None
        updates = self._progress.counts.get(name, steps)
        known = Stepped(name, optimizer, step, updates, self._ordinary(name))
        return blame(parameter, known, call)

    def _owner(self, parameter: Tensor) -> tuple[str, torch.optim.Optimizer | None]:
        """The optimizer that has stepped this parameter."""
        for name, optimizer in self._objects.optimizers():
            if name in self._progress.counts and any(
                p is parameter for g in optimizer.param_groups for p in g["params"]
            ):
                return name, optimizer
        return "", None

    def _ordinary(self, name: str) -> bool:
        """Neither gradients nor learning rate of the last step were large enough to carry a parameter out of its range."""
        rates = self.rates.get(name)
        if self._norm is None or not rates:
            return False
        return self._norm < ORDINARY and rates[-1][1] < ORDINARY

    def _name_of(self, parameter: Tensor) -> str | None:
        if self.capture is not None:
            known = self._replays.modules(self.capture).tensors.get(storage(parameter))
            if known is not None:
                return known[1]
        return next(
            iter(self._objects.parameter_names([self._objects.serial(parameter)])),
            None,
        )


def _facts(story: Story) -> dict[str, Any]:
    facts: dict[str, Any] = {
        "op": story.op or None,
        "module": story.module or "",
        "inputs": story.inputs,
    }
    facts |= {"result": story.result, "hook": story.hook}
    if story.leaf is not None:
        facts |= {"tensor": story.name, "index": story.index, "kind": story.leaf}
    if story.leaf in ("parameter", "buffer") and story.name:
        facts["parameter"] = story.name
        facts["module"] = story.name.rpartition(".")[0]
    return {k: v for k, v in facts.items() if v is not None}
