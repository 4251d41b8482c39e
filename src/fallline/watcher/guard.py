"""Keeps a non-finite update out of the model.

Before a step the gradients are looked at; when one of them is not finite, the step is run without any gradient, which
every optimizer takes as "nothing to do", and the gradients are put back afterwards. A run with finite gradients is not
touched at all.

Looking costs one pass over the gradients (`_foreach_norm`), and nothing where clipping has just measured their norm. Where
that pass takes more than half of what is left of the budget, a few small tensors are looked at before every step, where a NaN from
nearly any operation arrives as well, and all of them as often as the guard's share allows. On a CUDA device the answer is waited
for once per step, except for fused optimizers, which take the flag on the device and skip by themselves; that a flag was
raised is noticed an update later, and from then on the answer is waited for, so that the next one can be replayed.
"""

from __future__ import annotations

import math
import time
from collections import deque
from typing import Any

import torch
from torch import Tensor

from fallline.events import Clip
from fallline.taps.gradients import gradient_of as _gradient
from fallline.watcher.budget import FLOOR_SECONDS, SHARE, left_for_looks
from fallline.watcher.finite import Plan, norm_of
from fallline.watcher.fuse import GuardStop
from fallline.watcher.objects import Objects
from fallline.watcher.origin import Origin
from fallline.watcher.progress import Draft
from fallline.watcher.scalers import Scalers

__all__ = ["Guard", "GuardStop"]

# Elements and tensors: a pass over so few is too short to ration.
ALWAYS_BELOW = 65_536
ALWAYS_TENSORS = 64
ALWAYS_WITHIN = 0.5  # of what is left of the budget
FIRST = 32  # passes that are made before they are rationed
FEW = 2
MOST_RESTS = 1_000
SMALL = 4_096  # elements
_sum, _item = Tensor.sum, Tensor.item


class Guard:
    """mode: "skip" (the update is not applied), "stop" (raises `GuardStop`), "off"."""

    def __init__(
        self,
        mode: str,
        budget: float,
        objects: Objects,
        draft: Draft,
        scalers: Scalers,
        origin: Origin,
    ) -> None:
        self.mode = mode
        self._budget = budget
        self._objects = objects
        self._draft = draft
        self._scalers = scalers
        self._origin = origin
        self.skipped = 0
        # of all gradients of the update in progress, where it was measured
        self.norm: float | None = None
        # what was measured before the last step; of finite numbers it may overflow
        self.recent: float | None = None
        self.holds = False  # something that has to be let go after the step
        self._held: dict[int, list[tuple[Tensor, Tensor]]] = {}
        self._looked_at: list[Tensor] = []
        self._measured: tuple[Tensor, int] | None = None  # what a clip has just measured
        self._plans: dict[int, Plan] = {}  # by set of parameters
        self.flag: Tensor | None = None  # on the device: whether the step in progress is skipped
        self._flags: deque[tuple[int, Tensor, torch.cuda.Event]] = deque()  # on their way here
        self._waits = False  # a flag was raised: look before the step from now on
        self._last = time.perf_counter()
        self._rested = 0  # steps since then

    def clipped(self, norm: Tensor, event: Clip) -> None:
        number = event.parameter_set
        if number is None:
            return
        self._measured = (norm, number)
        # with a scaler an overflow is expected, and the scaler skips the step
        if (
            norm.device.type == "cpu"
            and self._draft.scale is None
            and not bool(torch.isfinite(norm))
        ):
            self._origin.clip_spread(event, float(norm))

    def check(self, optimizer: torch.optim.Optimizer, index: int, held: int) -> None:
        """Gradients are complete: hold the step back when one of them is not finite. `held`: the optimizer's parameter set."""
        measured, self._measured = self._measured, None
        self.norm = self.flag = None
        if self._flags:
            self.settle()
        if self._scalers.stepping is not None:
            return  # the scaler has looked already
        if measured is not None and self._measured_by_clip(measured, held):
            return
        plan = self._plans.get(held)
        if plan is not None and plan.rests > 0:
            plan.rests -= 1
            self._rested += 1
            groups = optimizer.param_groups
            total = None  # of finite numbers; else it is not finite either
            for i, j in plan.few:
                gradient = _gradient(groups[i]["params"][j])
                if gradient is not None:
                    total = _item(_sum(gradient)) + (total or 0.0)
            if total is not None and math.isfinite(total):
                return
        # each look at .grad makes a Python object: one look for the whole check
        gradients = [
            g
            for group in optimizer.param_groups
            for g in map(_gradient, group["params"])
            if g is not None
        ]
        if not gradients:
            return
        # the step looks at .grad as well, and finds the objects that were made here
        self._looked_at, self.holds = gradients, True
        if self._fine(optimizer, index, gradients, held):
            if self.flag is None and gradients[0].is_cuda:
                self._origin.waited()  # so the loss can be looked at, too
            return
        self._origin.gradients_bad(optimizer, index)
        self.recent = None
        if self.mode == "off":
            return
        self.skipped += 1
        if self.mode == "stop":
            raise GuardStop(
                f"update {index}: a gradient is NaN or Inf, so the step was not taken (--guard stop); "
                "the findings of this run say which operation made it"
            )
        parameters = [p for group in optimizer.param_groups for p in group["params"]]
        pairs = self._held[id(optimizer)] = [(p, p.grad) for p in parameters if p.grad is not None]
        for p, _ in pairs:
            p.grad = None

    def release(self, optimizer: torch.optim.Optimizer) -> bool:
        """After the step: give held-back gradients their place again. Whether the step was held back."""
        self._looked_at, self.holds = [], False
        if self.flag is not None and getattr(optimizer, "found_inf", None) is self.flag:
            del optimizer.found_inf  # type: ignore[attr-defined]
        held = self._held.pop(id(optimizer), None)
        if held is None:
            return False
        for parameter, gradient in held:
            parameter.grad = gradient
        return True

    def _measured_by_clip(self, measured: tuple[Tensor, int], held: int) -> bool:
        """Clipping has just read these gradients, and their norm was finite."""
        norm = measured[0]
        return (
            norm.device.type == "cpu"
            and self._objects.covers(measured[1], held)
            and math.isfinite(norm.item())
        )

    def _fine(self, optimizer: Any, index: int, gradients: list[Tensor], held: int) -> bool:
        fused = getattr(optimizer, "_step_supports_amp_scaling", False)
        if fused and self.mode == "skip" and not self._waits and gradients[0].is_cuda:
            return self._on_device(optimizer, gradients, index)
        started = time.perf_counter()
        plan = self._plans.get(held)
        if plan is None or plan.count != len(gradients):
            plan = self._plans[held] = Plan(gradients)
            plan.few = _few(optimizer)
        fine, self.norm = plan.norm_if_finite(gradients)
        if fine:
            self.recent = math.inf if self.norm is None else self.norm
        plan.took(time.perf_counter() - started)
        plan.rests = self._rests(plan)
        return fine

    def _rests(self, plan: Plan) -> int:
        """All gradients were looked at: before how many steps from now on a few have to do."""
        now, steps = time.perf_counter(), self._rested + 1
        update = (now - self._last) / steps  # how long one takes
        self._last, self._rested = now, 0
        if plan.elements <= ALWAYS_BELOW and plan.count <= ALWAYS_TENSORS:
            return 0
        left = left_for_looks(self._budget, update)
        if plan.looks < FIRST or not plan.few or plan.seconds <= ALWAYS_WITHIN * left:
            return 0
        return min(int(plan.seconds / max(SHARE * left, FLOOR_SECONDS)), MOST_RESTS)

    def _on_device(self, optimizer: Any, gradients: list[Tensor], index: int) -> bool:
        """A fused optimizer applies nothing where `found_inf` is set; nobody has to wait for the answer."""
        with torch.no_grad():
            found = ~torch.isfinite(norm_of(gradients))
        self.flag = optimizer.found_inf = found.float()
        loss = self._origin.last_loss
        sent = self.flag if loss is None else torch.stack((self.flag, loss.float().reshape(())))
        here = torch.empty(sent.shape, pin_memory=True)
        here.copy_(sent, non_blocking=True)
        arrived = torch.cuda.Event()  # type: ignore[no-untyped-call]
        arrived.record()
        self._flags.append((index, here, arrived))
        return True

    def settle(self, wait: bool = False) -> None:
        """Count the flags that have arrived from the device; `wait`: all of them."""
        while self._flags and (wait or self._flags[0][2].query()):  # type: ignore[no-untyped-call]
            index, here, arrived = self._flags.popleft()
            arrived.synchronize()
            flag, *losses = here.reshape(-1).tolist()
            if flag:
                self.skipped += 1
                self._waits = True
                self._origin.noticed_late(index, all(map(math.isfinite, losses)))


def _few(optimizer: torch.optim.Optimizer) -> list[tuple[int, int]]:
    """A few small float32 tensors of a CPU, from the first to the last: which of which parameter group."""
    small = [
        (i, j)
        for i, group in enumerate(optimizer.param_groups)
        for j, p in enumerate(group["params"])
        if p.grad is not None
        and p.is_cpu
        and p.numel() <= SMALL
        and p.dtype is torch.float32
        and type(p.grad) is Tensor
        and p.grad.layout is torch.strided
    ]
    step = max(1, -(-(len(small) - 1) // (FEW - 1)))
    return list(dict.fromkeys([*small[::step], *small[-1:]]))
