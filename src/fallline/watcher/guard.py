"""Keeps a non-finite update out of the model.

On a CPU the gradients are looked at before a step; when one of them is not finite, the step is run without any gradient, which
every optimizer takes as "nothing to do", and the gradients are put back afterwards. A run with finite gradients is not
touched at all. Looking costs one pass over the gradients (`_foreach_norm`), and nothing where clipping has just measured their
norm. Where that pass takes more than half of what is left of the budget, a few small tensors are looked at before every step,
where a NaN from nearly any operation arrives as well, and all of them as often as the guard's share allows.

On an accelerator the answer stays on the device (`on_device`): a fused optimizer takes it as `found_inf`, before any other step bad
gradients are set to zero, and the host reads the answer some updates later. Only where a bad update can be replayed is it waited
for: in the first updates, and for a while after a bad one. "exact" and "stop" always wait.

Several ranks decide alike without talking to each other: gradients that were all-reduced are the same everywhere, the number of the
update says how many of them are looked at, and what a late answer leads to happens a fixed number of updates later.
"""

from __future__ import annotations

import math
import sys
import time
from collections import deque
from operator import attrgetter
from typing import Any, NamedTuple

import torch
from torch import Tensor

from fallline.events import Clip
from fallline.replay.shards import flattened_in_parts
from fallline.taps.gradients import gradient_of as _gradient
from fallline.watcher.finite import Plan
from fallline.watcher.fuse import GuardStop
from fallline.watcher.later import Number, sent_numbers, syncs_allowed
from fallline.watcher.limit import Limit
from fallline.watcher.objects import Objects
from fallline.watcher.on_device import Look, values_of, wipe
from fallline.watcher.origin import Origin
from fallline.watcher.progress import Draft
from fallline.watcher.ration import Ration, few_of
from fallline.watcher.scalers import Scalers

__all__ = ["Guard", "GuardStop"]

# On an accelerator: updates that are waited for, at first and after a bad one, so that a bad one can be replayed.
WAITED = 50
WAITED_AGAIN = 200
LAG = 64  # updates after which a late answer is acted upon
TOGETHER = 16  # answers about updates at rest that are sent in one copy
# What the finding says of an update that was not watched.
UNWATCHED = (
    "updates this short are watched now and then, and this one was not; those that follow are"
)
# What the finding says about a bad update where the step does not take `found_inf`: "The guard ..."
ZEROED = (
    "set the gradients of this update to zero; momentum and weight decay still acted on the weights"
)
# ... and where each rank holds shards, and sees a NaN only in its own
OWN_SHARDS = (
    "set this rank's shards of the gradient to zero (momentum and weight decay still acted on the weights); "
    "ranks whose shards are finite applied their part of the update"
)
_sum, _item = Tensor.sum, Tensor.item
_is_cpu = attrgetter("is_cpu")


class _Late(NamedTuple):
    """The answer about an update, on its way here."""

    check: int  # how many there had been
    update: int
    held: int
    flag: Number
    loss: Number | None


class Guard:
    """mode: "skip" (the update is kept out), "exact" (and any device is waited for), "stop" (raises `GuardStop`), "off".

    `limit`: what happens when too many updates were kept out, "aside" (the guard lets them through from then on), "stop", "none".
    """

    def __init__(
        self,
        mode: str,
        limit: str,
        ration: Ration,
        objects: Objects,
        draft: Draft,
        scalers: Scalers,
        origin: Origin,
    ) -> None:
        self.mode = mode
        self._limit = limit
        self._ration = ration
        self._objects = objects
        self._draft = draft
        self._scalers = scalers
        self._origin = origin
        self.skipped = 0
        self.aside: int | None = None  # the update from which on nothing is kept out any more
        # of all gradients of the update in progress, where it was measured; a tensor on an accelerator
        self.norm: float | Tensor | None = None
        # what was measured before the last step; of finite numbers it may overflow
        self.recent: float | None = None
        self.resting = False  # updates are not watched now, so nothing can be replayed
        self.holds = False  # something that has to be let go after the step
        self._held: dict[int, list[tuple[Tensor, Tensor]]] = {}
        self._looked_at: list[Tensor] = []
        self._measured: tuple[Tensor, int] | None = None  # what a clip has just measured
        self._plans: dict[int, Plan] = {}  # by set of parameters
        self._spread: dict[int, bool] = {}  # by set of parameters: whether each rank holds a part
        self._counted = Limit()
        self._acts: tuple[int, str] | None = None  # at which check the limit counts, and why
        # on an accelerator
        self.flag: Tensor | None = None  # whether the step in progress is kept out
        self._late: deque[_Late] = deque()
        self._unsent: list[tuple[int, int, int, Tensor]] = []  # the same, still on the device
        self._checks = 0
        self._waits_until = WAITED  # checks

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
        if self._late or self._acts is not None:
            self._catch_up(index)
        if self._scalers.stepping is not None:
            return  # the scaler has looked already
        if measured is not None and self._measured_by_clip(measured, held):
            return
        plan = self._plans.get(held)
        if plan is None or not plan.rests or not self.spared(optimizer, index, held):
            self.look(optimizer, index, held)

    def spared(self, optimizer: torch.optim.Optimizer, index: int, held: int) -> bool:
        """Whether a few gradients have to do before this update, and are finite."""
        plan = self._plans.get(held)
        if plan is None or not self._ration.spares(plan, index):
            return False
        groups = optimizer.param_groups
        total = None  # of finite numbers; else it is not finite either
        for i, j in plan.few:
            gradient = _gradient(groups[i]["params"][j])
            if gradient is not None:
                total = _item(_sum(gradient)) + (total or 0.0)
        # 0: clipping divides by an infinite norm, which leaves zeros, and a NaN where the infinity was
        return total is not None and total != 0.0 and math.isfinite(total)

    def look(self, optimizer: torch.optim.Optimizer, index: int, held: int) -> None:
        """At all gradients."""
        if self.resting and self._is_due():
            self._catch_up(index)
        # each look at .grad makes a Python object: one look for the whole check
        gradients = []
        for group in optimizer.param_groups:
            for gradient in map(_gradient, group["params"]):
                if gradient is not None:
                    gradients.append(gradient)  # noqa: PERF401 (a comprehension is a call)
        if not gradients:
            return
        # the step looks at .grad as well, and finds the objects that were made here
        self._looked_at, self.holds = gradients, True
        if self.mode in ("skip", "off") and not any(map(_is_cpu, gradients)):
            self._leave_on_device(optimizer, index, held, gradients)
        elif self._fine(optimizer, gradients, held):
            if not gradients[0].is_cpu and not self.resting:
                self._origin.waited()  # so the loss can be looked at, too
        else:
            self._bad(optimizer, index, held, gradients)

    def _bad(
        self, optimizer: torch.optim.Optimizer, index: int, held: int, gradients: list[Tensor]
    ) -> None:
        """One of these gradients is not finite."""
        # shards: ranks that hold no NaN take this step, and optimizers that count their steps must agree
        in_parts = _in_parts(optimizer, gradients, self._objects)
        self._origin.guarded = OWN_SHARDS if in_parts and self.mode in ("skip", "exact") else None
        if self.resting:
            self._origin.noticed_late(index, True, UNWATCHED)
        else:
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
        if in_parts:
            wipe([values_of(g) for g in gradients], torch.ones((), device=gradients[0].device))
        else:
            self._hold_back(optimizer)
        why = self._counted.reached(held, index)
        if why is not None:
            self._reached_limit(index + 1, why)

    def _hold_back(self, optimizer: torch.optim.Optimizer) -> None:
        parameters = [p for group in optimizer.param_groups for p in group["params"]]
        pairs = self._held[id(optimizer)] = [(p, p.grad) for p in parameters if p.grad is not None]
        for p, _ in pairs:
            p.grad = None

    def few(self, optimizer: torch.optim.Optimizer, held: int) -> list[Tensor]:
        """The parameters whose gradients have to do before most updates, where there are some."""
        plan, groups = self._plans.get(held), optimizer.param_groups
        return [groups[i]["params"][j] for i, j in plan.few] if plan is not None else []

    def probe(self, optimizer: torch.optim.Optimizer, held: int) -> tuple[Tensor | None, float]:
        """For updates that are not watched: a parameter whose gradient shows nearly any NaN, and what a look at all takes."""
        plan = self._plans.get(held)
        few = few_of(optimizer)
        if plan is None or not few:
            return None, plan.seconds if plan is not None else 0.0
        i, j = few[0]
        parameter: Tensor = optimizer.param_groups[i]["params"][j]
        return parameter, plan.seconds

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

    def _fine(self, optimizer: Any, gradients: list[Tensor], held: int) -> bool:
        started = time.thread_time()
        plan = self._plans.get(held)
        if plan is None or plan.count != len(gradients):
            plan = self._plans[held] = Plan(gradients)
            plan.few = few_of(optimizer)
        fine, norm = plan.norm_if_finite(gradients)
        self.norm = norm
        if fine:
            self.recent = math.inf if norm is None else norm
        plan.rests = self._ration.rests(plan, started)
        return fine

    # -- on an accelerator -------------------------------------------------------------------------------------

    def _leave_on_device(
        self, optimizer: Any, index: int, held: int, gradients: list[Tensor]
    ) -> None:
        """Whether they are finite is known on the device alone, and acted upon there."""
        with torch.no_grad():
            look = Look(gradients)
        self._checks += 1
        self.flag, self.norm = look.flag, look.norm
        fused = getattr(optimizer, "_step_supports_amp_scaling", False)
        in_parts = self._spread.get(held)
        if in_parts is None:
            in_parts = self._spread[held] = _in_parts(optimizer, gradients, self._objects)
        fused = fused and not in_parts  # a step that is left out is not counted either
        self._origin.guarded = (
            None if fused or self.mode == "off" else OWN_SHARDS if in_parts else ZEROED
        )
        if self._checks <= self._waits_until and not self.resting:
            self._wait_for(optimizer, index, look)
        if self.mode == "off":
            return
        if fused:
            optimizer.found_inf = self.flag
        else:
            look.wipe()

    def _wait_for(self, optimizer: torch.optim.Optimizer, index: int, look: Look) -> None:
        """While the micro-batch of this update can still be replayed."""
        loss = self._origin.last_loss
        sent = [look.flag, *(t for t in (look.norm, loss) if t is not None)]
        flag, *others = map(float, sent_numbers(sent))
        self.recent = others[0] if look.norm is not None and not flag else None
        if flag:
            with syncs_allowed():
                self._origin.gradients_bad(optimizer, index)
        elif loss is not None and not math.isfinite(others[-1]):
            with syncs_allowed():
                self._origin.waited()

    def sent(self, index: int, held: int, flag: Number, loss: Number | None) -> None:
        """The answer about this update is on its way to the host."""
        self._late.append(_Late(self._checks, index, held, flag, loss))

    def flagged(self, index: int, held: int, flag: Tensor) -> None:
        """The same of an update at rest: its answer can wait for those of the next ones."""
        if self._unsent and self._unsent[0][3].device != flag.device:
            self.send()
        self._unsent.append((self._checks, index, held, flag))
        if len(self._unsent) >= TOGETHER:
            self.send()

    def send(self) -> None:
        """What has not been sent yet."""
        unsent, self._unsent = self._unsent, []
        if unsent:
            numbers = sent_numbers([flag for *_, flag in unsent])
            for (check, index, held, _), number in zip(unsent, numbers, strict=True):
                self._late.append(_Late(check, index, held, number, None))

    def _is_due(self) -> bool:
        """An answer is so old that all ranks have to know it by now, or it is time to act upon one."""
        old = bool(self._late) and self._late[0].check <= self._checks - LAG
        return old or (self._acts is not None and self._checks >= self._acts[0])

    def _catch_up(self, index: int) -> None:
        """Before another step: read what has arrived, and wait for what is due."""
        self._read(self._checks - LAG)
        if self._acts is not None and self._checks >= self._acts[0]:
            why, self._acts = self._acts[1], None
            self._reached_limit(index, why)

    def settle(self) -> None:
        """Wait for all answers, and count them."""
        self.send()
        self._read(self._checks)

    def _read(self, until: int) -> None:
        """Count the answers that have arrived from the device; those about checks up to this one are waited for."""
        while self._late and (self._late[0].check <= until or self._late[0].flag.here()):
            late = self._late.popleft()
            if not late.flag:
                continue
            if self.mode != "off":
                self.skipped += 1
                why = self._counted.reached(late.held, late.update)
                if why is not None and self._acts is None:
                    self._acts = (late.check + LAG, why)
            if late.check > self._waits_until:
                finite = late.loss is None or math.isfinite(float(late.loss))
                if self._origin.noticed_late(late.update, finite):
                    self._waits_until = self._checks + WAITED_AGAIN

    # -- too many ----------------------------------------------------------------------------------------------

    def _reached_limit(self, index: int, why: str) -> None:
        """Before this update."""
        if self._limit == "none" or self.mode == "off":
            return
        if self._limit == "stop":
            raise GuardStop(
                f"update {index}: {why} were NaN or Inf and were kept out of the model, so it does not train "
                "(--guard-limit stop); the findings of this run say which operation made them"
            )
        self.mode, self.aside = "off", index
        print(
            f"fallline: {why} were NaN or Inf, so the guard steps aside: from update {index} on they are applied, as without "
            "fallline (--guard-limit stop ends the run instead)",
            file=sys.stderr,
        )


def _in_parts(optimizer: torch.optim.Optimizer, gradients: list[Tensor], objects: Objects) -> bool:
    """Whether each rank steps a part of the parameters: DTensors, flat parameters of FSDP1, partitions of ZeRO."""
    if any(hasattr(g, "_local_tensor") for g in gradients):
        return True
    distributed = torch.distributed
    if not distributed.is_available() or not distributed.is_initialized():
        return False
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    zero = any(p.dim() == 1 and objects.is_copy(p) for p in parameters)
    return zero or flattened_in_parts(parameters)
