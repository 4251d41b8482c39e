"""Backward passes: `loss.backward()`, `torch.autograd.backward(losses)`, and gradients that `torch.autograd.grad` returns."""

from __future__ import annotations

from dataclasses import dataclass
from threading import get_ident
from typing import Any

import torch

from fallline.taps.frames import caller
from fallline.taps.patches import Patches, Wrapped
from fallline.taps.tap import Call, Reached, Tap, Topic, new, published, switch, thread

__all__ = ["BACKWARD", "GRADIENTS_TAKEN", "BackwardCall", "GradientsTaken"]

# What comes after the tensors in `tensor.backward(...)` and in `torch.autograd.backward(tensors, ...)`.
_METHOD = ("gradient", "retain_graph", "create_graph", "inputs")
_FUNCTION = ("grad_tensors", "retain_graph", "create_graph", "grad_variables", "inputs")


@dataclass(slots=True)
class BackwardCall(Call):
    """Gradients of these losses are about to be added up in the parameters."""

    loss: Any  # the first one; None where there is none
    args: tuple[Any, ...]  # what was given after the losses
    kwargs: dict[str, Any]
    names: tuple[str, ...]  # of `args`

    @property
    def options(self) -> dict[str, Any]:
        """retain_graph, create_graph, ..., as far as they were given."""
        return dict(zip(self.names, self.args, strict=False)) | self.kwargs


@dataclass(slots=True)
class GradientsTaken(Call):
    """`torch.autograd.grad`: gradients that go into other values."""


def _patch_backward(patches: Patches) -> None:
    patches.patch(torch.Tensor, "backward", lambda original: _backward(original, _METHOD))
    patches.patch(torch.autograd, "backward", lambda original: _backward(original, _FUNCTION))


def _patch_grad(patches: Patches) -> None:
    patches.patch(torch.autograd, "grad", _grad)


def _backward(original: Wrapped, names: tuple[str, ...]) -> Wrapped:
    def backward(tensors: Any, *args: Any, **kwargs: Any) -> Any:
        if switch.replaying:
            raise Reached(_first(tensors))
        if switch.quiet or switch.in_backward:  # the method calls the function
            return original(tensors, *args, **kwargs)
        if thread.ident != get_ident() and thread.keeps_out(backward=True):
            return original(tensors, *args, **kwargs)
        call = new(BackwardCall)
        call.frame = caller()
        call.loss = tensors if isinstance(tensors, torch.Tensor) else _first(tensors)
        call.args, call.kwargs, call.names = args, kwargs, names
        for handler in BACKWARD.before:
            handler(call)
        switch.in_backward = True
        try:
            result = original(tensors, *args, **kwargs)
        finally:
            switch.in_backward = False
        for handler in BACKWARD.after:
            handler(call)
        return result

    return backward


def _first(tensors: Any) -> Any:
    return tensors if isinstance(tensors, torch.Tensor) else next(iter(tensors), None)


def _grad(original: Wrapped) -> Wrapped:
    def grad(*args: Any, **kwargs: Any) -> Any:
        if not published():
            return original(*args, **kwargs)
        return GRADIENTS_TAKEN.around(GradientsTaken(caller()), original, *args, **kwargs)

    return grad


BACKWARD = Topic(BackwardCall, Tap(_patch_backward, hot=True))
GRADIENTS_TAKEN = Topic(GradientsTaken, Tap(_patch_grad))
