"""Keeps a non-finite update out of the model.

Before a step the gradients are looked at; when one of them is not finite, the step is run without any gradient, which
every optimizer takes as "nothing to do", and the gradients are put back afterwards. A run with finite gradients is not
touched at all.

Looking costs one pass over the gradients (`_foreach_norm`), and nothing where clipping has just measured their norm. A
model so large that a pass does not fit the budget is looked at in its small tensors at every step, where a NaN
from any operation arrives as well, and as a whole as often as the budget allows. On a CUDA device the answer is waited
for once per step, except for fused optimizers, which take the flag on the device and skip by themselves.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from fallline.errors import FalllineError

if TYPE_CHECKING:
    from fallline.event import Event
    from fallline.watcher.session import Session

__all__ = ["Guard", "GuardStop", "all_finite"]

ALWAYS_BELOW = 1_000_000  # elements: a pass over so many is too short to ration
SMALL = 16_384
SMALL_AVERAGE = 2_048
COPIED_BELOW = 4_096
_flatten: Any = torch._C._nn.flatten_dense_tensors


class GuardStop(FalllineError, FloatingPointError):
    """A gradient is NaN or Inf and the run was started with --guard stop."""


class Guard:
    """mode: "skip" (the update is not applied), "stop" (raises `GuardStop`), "off"."""

    def __init__(self, session: Session, mode: str) -> None:
        self.session = session
        self.mode = mode
        self.skipped = 0
        self.norm: Tensor | None = (
            None  # of all gradients of the update in progress, where it was measured
        )
        self._held: dict[int, list[tuple[Tensor, Tensor]]] = {}
        self._measured: tuple[Tensor, int] | None = None  # what a clip has just measured
        self._plain_sets: dict[int, bool] = {}
        self._flagged: set[int] = set()  # fused optimizers that were given our flag for this step
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

    def check(self, optimizer: torch.optim.Optimizer, index: int) -> None:
        """Gradients are complete: hold the step back when one of them is not finite."""
        measured, self._measured = self._measured, None
        self.norm = None
        if self.session.scaler_stepping is not None:
            return  # the scaler has looked already
        # each look at .grad makes a Python object: one look for the whole check
        gradients = [
            g
            for group in optimizer.param_groups
            for p in group["params"]
            if (g := p.grad) is not None
        ]
        if not gradients or self._fine(optimizer, gradients, measured):
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
        held = self._held[id(optimizer)] = [(p, p.grad) for p in parameters if p.grad is not None]
        for p, _ in held:
            p.grad = None

    def release(self, optimizer: torch.optim.Optimizer) -> bool:
        """After the step: give held-back gradients their place again. Whether the step was held back."""
        if id(optimizer) in self._flagged:
            self._flagged.discard(id(optimizer))
            del optimizer.found_inf  # type: ignore[attr-defined]
        held = self._held.pop(id(optimizer), None)
        if held is None:
            return False
        for parameter, gradient in held:
            parameter.grad = gradient
        return True

    def _fine(self, optimizer: Any, gradients: list[Tensor], measured: Any) -> bool:
        objects = self.session.objects
        held = objects.optimizer_sets[objects.optimizer(optimizer)]
        if measured is not None and objects.covers(measured[1], held):
            norm = measured[0]
            if norm.device.type == "cpu" and bool(torch.isfinite(norm)):
                return True
        if gradients[0].device.type == "cuda" and getattr(
            optimizer, "_step_supports_amp_scaling", False
        ):
            return self._on_device(optimizer, gradients)
        if sum(map(Tensor.numel, gradients)) > ALWAYS_BELOW and not self._affordable():
            gradients = [g for g in gradients if g.numel() <= SMALL] or gradients[:1]
            return all_finite(gradients)
        started = time.perf_counter()
        fine, self.norm = norm_if_finite(gradients, plain=self._plain(held, gradients))
        self._cost = time.perf_counter() - started
        self._credit -= self._cost
        return fine

    def _plain(self, held: int, gradients: list[Tensor]) -> bool:
        """Ordinary real tensors, whose gradients need no unwrapping; asked once for a set of parameters."""
        known = self._plain_sets.get(held)
        if known is None:
            known = self._plain_sets[held] = all(
                type(g) is Tensor and g.layout is torch.strided and not g.is_complex()
                for g in gradients
            )
        return known

    def _affordable(self) -> bool:
        now = time.perf_counter()
        self._credit = min(
            self._credit + 0.25 * self.session.options.budget * (now - self._last), 1.0
        )
        self._last = now
        return self._credit >= self._cost

    def _on_device(self, optimizer: Any, gradients: list[Tensor]) -> bool:
        """A fused optimizer applies nothing where `found_inf` is set; nobody has to wait for the answer."""
        norms = torch.stack(torch._foreach_norm(gradients, float("inf")))
        self._flagged.add(id(optimizer))
        optimizer.found_inf = (~torch.isfinite(norms).all()).float()
        self.session.origin.later(optimizer.found_inf)
        return True


def all_finite(gradients: list[Tensor]) -> bool:
    """Whether every number is finite."""
    return norm_if_finite(gradients)[0]


@torch.no_grad()
def norm_if_finite(gradients: list[Tensor], *, plain: bool = False) -> tuple[bool, Tensor | None]:
    """Whether every number is finite, and then the norm of all of them.

    A finite 2-norm says so at once, and is by far the cheapest norm on a CPU; one that is not finite may also come from
    large finite numbers, so only then each number is looked at.
    """
    dense = gradients if plain else [v for g in gradients if (v := _values(g)).numel()]
    if not dense:
        return True, None
    try:
        totals = [torch.linalg.vector_norm(torch.stack(found)) for found in _norms(dense).values()]
    except (RuntimeError, NotImplementedError):
        dense = [v for g in gradients if (v := _values(g)).numel()]
        return all(bool(torch.isfinite(g).all()) for g in dense), None
    if all(bool(torch.isfinite(total)) for total in totals):  # one wait per device
        return True, totals[0] if len(totals) == 1 else torch.stack(
            [t.cpu() for t in totals]
        ).norm()
    return all(bool(torch.isfinite(g).all()) for g in dense), None


def _norms(dense: list[Tensor]) -> dict[torch.device, list[Tensor]]:
    """Norms that together make the norm of everything, by device.

    Many small tensors on a CPU are first copied into one: a kernel for each would cost four times as much.
    """
    wide = torch.promote_types(dense[0].dtype, torch.float32)
    small: list[Tensor] = []
    large = dense
    if dense[0].device.type == "cpu":
        large = []
        for g in dense:
            (small if g.numel() <= COPIED_BELOW else large).append(g)
    norms = list(torch._foreach_norm(large, 2, dtype=wide)) if large else []
    if small:
        norms.append(torch.linalg.vector_norm(_flatten(small), dtype=wide))
    by_device: dict[torch.device, list[Tensor]] = {}
    for norm in norms:
        by_device.setdefault(norm.device, []).append(norm.float())
    return by_device


def all_small(gradients: list[Tensor]) -> bool:
    """Small tensors of one type on the CPU."""
    first = gradients[0]
    if first.device.type != "cpu" or first.dtype not in (torch.float32, torch.float64):
        return False
    return sum(g.numel() for g in gradients) <= SMALL_AVERAGE * len(gradients)


def _values(gradient: Tensor) -> Tensor:
    gradient = gradient.detach()
    local: Any = getattr(gradient, "_local_tensor", gradient)
    gradient = local if isinstance(local, Tensor) else gradient
    if gradient.is_sparse:
        gradient = gradient.coalesce().values()
    return torch.view_as_real(gradient) if gradient.is_complex() else gradient
