"""Whose gradients these are: while a window is open, nobody but its Stepper may change them or step on them."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from operator import eq, is_
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
    # Who computed last: nearly always the same one, and then nothing has to be put aside
    _latest: ClassVar[weakref.ref[Ownership] | None] = None

    def __init__(
        self, optimizers: Sequence[Optimizer], kept: Callable[[], list[Tensor | None]], keeps: bool
    ) -> None:
        self.optimizers = optimizers
        self.parameters: Parameters = None  # type: ignore[assignment]  # set when the Stepper has collected them
        self.stepping = False  # the Stepper itself is stepping now
        self.lost = False  # a newer Stepper has taken the optimizer
        self._kept, self._keeps = kept, keeps  # gradients that a wrapper holds inside
        self._aside: list[Tensor | None] | None = None
        self._seen: list[Tensor | None] = []
        self._versions: list[int] = []
        self._is_open = False
        self._self = weakref.ref(self)
        self._applied: Any = None  # a gradient of the last update, as weak as it can be
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
        if Ownership._latest is self._self:
            return
        Ownership._latest = self._self
        for other in list(self._open):
            if other is not self:
                other._set_aside()
        if self._aside is not None:
            for parameter, gradient in zip(self.parameters.tensors, self._aside, strict=True):
                parameter.grad = gradient
            self._aside = None

    def note(self, stays_open: bool) -> None:
        """After backward: this is what the gradients are now."""
        self._seen = seen = [p.grad for p in self.parameters.tensors]
        if self._keeps:
            seen += self._kept()
        self._versions = [-1 if g is None else g._version for g in seen]
        if stays_open and not self._is_open:
            self._is_open = True
            self._open.add(self)

    def check_unchanged(self) -> None:
        if self._aside is not None:
            self.take()
        now = [p.grad for p in self.parameters.tensors]
        if self._keeps:
            now += self._kept()
        # torch counts every write to a tensor: that is cheaper to look at than its values.
        versions = [-1 if g is None else g._version for g in now]
        if not (all(map(is_, now, self._seen)) and all(map(eq, versions, self._versions))):
            self.close()
            raise EngineError(_CHANGED)

    def applied(self, gradient: Tensor) -> None:
        """An update was made of the gradients, and they are still there."""
        self._applied = weakref.ref(gradient)

    def must_not_step(self) -> bool:
        """Whether somebody else's step would use gradients that are not complete, or that were applied already."""
        if self._seen:
            return True
        gradient = None if self._applied is None else self._applied()
        return gradient is not None and any(p.grad is gradient for p in self.parameters.tensors)

    def close(self) -> None:
        """The window is over."""
        self._seen = []
        self._aside = None
        if self._is_open:
            self._is_open = False
            self._open.discard(self)

    def _set_aside(self) -> None:
        if self._aside is None and not (self._keeps and self._kept()):
            self._aside = [p.grad for p in self.parameters.tensors]
            for parameter in self.parameters.tensors:
                parameter.grad = None


class _Hook:
    """Runs before every step of the optimizer, whoever asks for it."""

    def __init__(self, owner: Ownership) -> None:
        self.owner = weakref.ref(owner)
        self.handle: Any = None

    def __call__(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        owner = self.owner()
        if owner is not None and owner.stepping:
            return  # the Stepper has seen to it
        SAVER.before_step()
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
