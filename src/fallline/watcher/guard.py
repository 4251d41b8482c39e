"""Keeps a non-finite update out of the model.

Before a step the gradients are looked at; when one of them is not finite, the step is run without any gradient, which
every optimizer takes as "nothing to do", and the gradients are put back afterwards. A run with finite gradients is not
touched at all.

Looking costs one pass over the gradients (`_foreach_norm`), and nothing where clipping has just measured their norm. A
model so large that a pass does not fit the budget is looked at in its small tensors at every step, where a NaN
from any operation arrives as well, and as a whole as often as the budget allows. On a CUDA device the answer is waited
for once per step, except for fused optimizers, which take the flag on the device and skip by themselves; that a flag was
raised is noticed an update later, and from then on the answer is waited for, so that the next one can be replayed.
"""

from __future__ import annotations

import math
import time
from collections import deque
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from fallline.errors import FalllineError
from fallline.watcher.finite import Plan, all_finite, norm_of

if TYPE_CHECKING:
    from fallline.event import Event
    from fallline.watcher.session import Session

__all__ = ["Guard", "GuardStop"]

ALWAYS_BELOW = 1_000_000  # elements: a pass over so many is too short to ration
SMALL = 16_384
# Reading `.grad` this way goes past taps on it, and past the bytecode of a loop.
_gradient: Any = vars(torch._C.TensorBase)["grad"].__get__


class GuardStop(FalllineError, FloatingPointError):
    """A gradient is NaN or Inf and the run was started with --guard stop."""


class Guard:
    """mode: "skip" (the update is not applied), "stop" (raises `GuardStop`), "off"."""

    def __init__(self, session: Session, mode: str) -> None:
        self.session = session
        self.mode = mode
        self.skipped = 0
        # of all gradients of the update in progress, where it was measured
        self.norm: float | None = None
        self._held: dict[int, list[tuple[Tensor, Tensor]]] = {}
        self._measured: tuple[Tensor, int] | None = None  # what a clip has just measured
        self._plans: dict[int, Plan] = {}  # by set of parameters
        self.flag: Tensor | None = None  # on the device: whether the step in progress is skipped
        self._flags: deque[tuple[int, Tensor, torch.cuda.Event]] = deque()  # on their way here
        self._waits = False  # a flag was raised: look before the step from now on
        self._credit = 0.0
        self._cost = 0.0
        self._last = time.perf_counter()

    def clipped(self, norm: Tensor, event: Event) -> None:
        number = event.facts.get("parameters")
        if number is None:
            return
        self._measured = (norm, number)
        # with a scaler an overflow is expected, and the scaler skips the step
        if (
            norm.device.type == "cpu"
            and not self.session.scaling
            and not bool(torch.isfinite(norm))
        ):
            self.session.origin.clip_spread(event, float(norm))

    def check(self, optimizer: torch.optim.Optimizer, index: int, held: int) -> None:
        """Gradients are complete: hold the step back when one of them is not finite. `held`: the optimizer's parameter set."""
        measured, self._measured = self._measured, None
        self.norm = self.flag = None
        if self._flags:
            self.settle()
        if self.session.scaler_stepping is not None:
            return  # the scaler has looked already
        # each look at .grad makes a Python object: one look for the whole check
        gradients = [
            g
            for group in optimizer.param_groups
            for g in map(_gradient, group["params"])
            if g is not None
        ]
        if not gradients:
            return
        if self._fine(optimizer, index, gradients, held, measured):
            if self.flag is None and gradients[0].is_cuda:
                self.session.origin.waited()  # so the loss can be looked at, too
            return
        self.session.origin.gradients_bad(optimizer, index)
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
        if self.flag is not None and getattr(optimizer, "found_inf", None) is self.flag:
            del optimizer.found_inf  # type: ignore[attr-defined]
        held = self._held.pop(id(optimizer), None)
        if held is None:
            return False
        for parameter, gradient in held:
            parameter.grad = gradient
        return True

    def _fine(
        self,
        optimizer: Any,
        index: int,
        gradients: list[Tensor],
        held: int,
        measured: tuple[Tensor, int] | None,
    ) -> bool:
        if measured is not None and self.session.objects.covers(measured[1], held):
            norm = measured[0]
            if norm.device.type == "cpu" and bool(torch.isfinite(norm)):
                return True
        fused = getattr(optimizer, "_step_supports_amp_scaling", False)
        if fused and self.mode == "skip" and not self._waits and gradients[0].is_cuda:
            return self._on_device(optimizer, gradients, index)
        plan = self._plans.get(held)
        if plan is None or plan.count != len(gradients):
            plan = self._plans[held] = Plan(gradients)
        if plan.elements <= ALWAYS_BELOW or gradients[0].is_cuda:
            fine, self.norm = plan.norm_if_finite(gradients)
            return fine
        if not self._affordable():
            gradients = [g for g in gradients if g.numel() <= SMALL] or gradients[:1]
            return all_finite(gradients)
        started = time.perf_counter()
        fine, self.norm = plan.norm_if_finite(gradients)
        self._cost = time.perf_counter() - started
        self._credit -= self._cost
        return fine

    def _affordable(self) -> bool:
        now = time.perf_counter()
        self._credit = min(
            self._credit + 0.25 * self.session.options.budget * (now - self._last), 1.0
        )
        self._last = now
        return self._credit >= self._cost

    def _on_device(self, optimizer: Any, gradients: list[Tensor], index: int) -> bool:
        """A fused optimizer applies nothing where `found_inf` is set; nobody has to wait for the answer."""
        with torch.no_grad():
            found = ~torch.isfinite(norm_of(gradients))
        self.flag = optimizer.found_inf = found.float()
        loss = self.session.origin.last_loss
        told = self.flag if loss is None else torch.stack((self.flag, loss.float().reshape(())))
        here = torch.empty(told.shape, pin_memory=True)
        here.copy_(told, non_blocking=True)
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
                self.session.origin.noticed_late(index, all(map(math.isfinite, losses)))
