"""Whose gradients these are: while a window is open, nobody but its Stepper may change them or step on them."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from typing import Any, ClassVar

from torch import Tensor
from torch.optim import Optimizer

from fallline.engine.forget import forget_gradients
from fallline.engine.gradients import Parameters
from fallline.engine.saving import SAVER
from fallline.errors import EngineError

__all__ = ["Ownership", "unwrapped"]

_CHANGED = (
    "the gradients of an open window were changed from outside: by zero_grad(), by your own clipping, or by the backward pass of "
    "a different loss. Remove that call: the Stepper clears gradients when a window begins and clips when it ends, and a model that only "
    "passes on the gradient of a different loss should be frozen with requires_grad_(False) meanwhile. Then stepper.discard() begins a new window. "
    "To change gradients on purpose, use parameter.register_hook(...)"
)


class Ownership:
    """The gradients of one Stepper's parameters.

    Two Steppers whose losses reach each other's parameters, as in a GAN, are kept apart: while one computes, the other's
    gradients are set aside.
    """

    _open: ClassVar[weakref.WeakSet[Ownership]] = weakref.WeakSet()

    def __init__(
        self, optimizers: Sequence[Optimizer], kept: Callable[[], list[Tensor | None]]
    ) -> None:
        self.optimizers = optimizers
        self.parameters: Parameters = None  # type: ignore[assignment]  # set when the Stepper has collected them
        self.stepping = False  # the Stepper itself is stepping now
        self.lost = False  # a newer Stepper has taken the optimizer
        self._kept = kept
        self._aside: list[Tensor | None] | None = None
        self._seen: list[tuple[Tensor | None, int]] = []
        self._applied: tuple[Tensor, Any] | None = (
            None  # a gradient of the last update, as weak as it can be
        )
        for optimizer in optimizers:
            _claim(optimizer, self)

    def check_ours(self) -> None:
        if self.lost:
            raise EngineError(
                "a newer Stepper was made for this optimizer: use that one. With two Steppers, each would clear the other's "
                "gradients"
            )

    def begin(self) -> None:
        """A window begins: what other losses left behind in the meantime goes."""
        forget_gradients(self.optimizers)

    def take(self) -> None:
        """Before the forward pass: put the others' gradients aside, and our own back."""
        if self._open:
            for other in list(self._open):
                if other is not self:
                    other._set_aside()
        if self._aside is not None:
            for parameter, gradient in zip(self.parameters.tensors, self._aside, strict=True):
                parameter.grad = gradient
            self._aside = None

    def note(self, stays_open: bool) -> None:
        """After backward: this is what the gradients are now."""
        self._seen = self._now()
        if stays_open:
            self._open.add(self)

    def check_unchanged(self) -> None:
        if self._aside is not None:
            self.take()
        for (now, version), (then, before) in zip(self._now(), self._seen, strict=False):
            if now is not then or version != before:
                self.close()
                raise EngineError(_CHANGED)

    def applied(self, gradient: Tensor) -> None:
        """An update was made of the gradients, and they are still there."""
        holder = next(p for p in self.parameters.tensors if p.grad is gradient)
        self._applied = holder, weakref.ref(gradient)

    def must_not_step(self) -> bool:
        """Whether somebody else's step would use gradients that are not complete, or that were applied already."""
        if self.stepping:
            return False
        if self._seen:
            return True
        if self._applied is None:
            return False
        holder, gradient = self._applied
        return holder.grad is not None and holder.grad is gradient()

    def close(self) -> None:
        """The window is over."""
        self._seen = []
        self._aside = None
        self._open.discard(self)

    def _now(self) -> list[tuple[Tensor | None, int]]:
        # torch counts every write to a tensor: that is cheaper to look at than its values.
        grads = [p.grad for p in self.parameters.tensors] + self._kept()
        return [(g, -1 if g is None else g._version) for g in grads]

    def _set_aside(self) -> None:
        if self._aside is None and not self._kept():
            self._aside = [p.grad for p in self.parameters.tensors]
            for parameter in self.parameters.tensors:
                parameter.grad = None


class _Hook:
    """Runs before every step of the optimizer, whoever asks for it."""

    def __init__(self, owner: Ownership) -> None:
        self.owner = weakref.ref(owner)
        self.handle: Any = None

    def __call__(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        SAVER.before_step()
        owner = self.owner()
        if owner is not None and owner.must_not_step():
            raise EngineError(
                "optimizer.step() was called by hand although a Stepper steps this optimizer, so each gradient would be applied twice, or before its "
                "window is full. Remove the call (and zero_grad() with it); for a remainder call stepper.step()"
            )


def _claim(optimizer: Optimizer, owner: Ownership) -> None:
    for earlier in list(getattr(optimizer, "_optimizer_step_pre_hooks", {}).values()):
        if isinstance(earlier, _Hook):
            earlier.handle.remove()
            if (former := earlier.owner()) is not None:
                former.lost = True
    if hasattr(optimizer, "_optimizer_step_pre_hooks"):
        hook = _Hook(owner)
        hook.handle = optimizer.register_step_pre_hook(hook)


def unwrapped(optimizer: Any) -> Any:
    """torch's own optimizer, inside the one that Accelerate or Fabric prepared: those step only when they think it is time."""
    while isinstance(inner := getattr(optimizer, "optimizer", None), Optimizer):
        optimizer = inner
    return optimizer
