"""A custom Function with a witness: what its forward did to its inputs and kept, and what its backward really returned."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from fallline.engine import rng

__all__ = ["Witness", "apply", "apply_plainly", "floats", "has_setup_context", "moved", "watched"]


@dataclass
class Witness:
    """One forward and backward."""

    returned: list[Any] = field(default_factory=list)  # by backward, before autograd adapts it
    on_ctx: dict[str, Tensor] = field(default_factory=dict)  # tensors that are plain attributes
    changed: list[int] = field(default_factory=list)  # inputs written to
    dirty: list[int] = field(default_factory=list)  # inputs declared with mark_dirty


def watched(function: Any, witness: Witness) -> Any:
    """A subclass that tells the witness; everything else is the user's."""

    def backward(ctx: Any, *gradients: Any) -> Any:
        found = function.backward(ctx, *gradients)
        witness.returned = list(found) if isinstance(found, tuple | list) else [found]
        return found

    def forward(*args: Any) -> Any:
        # with a setup_context of its own, forward is not given a ctx
        ctx = None if separate else args[0]
        given = args if separate else args[1:]
        before = [x._version if isinstance(x, Tensor) else 0 for x in given]
        result = function.forward(*args)
        witness.changed = [
            i
            for i, (x, version) in enumerate(zip(given, before, strict=True))
            if isinstance(x, Tensor) and x._version != version
        ]
        if ctx is not None:
            _look_at(ctx, given)
        return result

    def setup_context(ctx: Any, inputs: Any, output: Any) -> Any:
        found = function.setup_context(ctx, inputs, output)
        _look_at(ctx, inputs)
        return found

    def _look_at(ctx: Any, given: Sequence[Any]) -> None:
        declared = {id(t) for t in (ctx.dirty_tensors or ())}
        witness.dirty = [i for i, x in enumerate(given) if id(x) in declared]
        witness.on_ctx = {
            name: value for name, value in vars(ctx).items() if isinstance(value, Tensor)
        }

    separate = has_setup_context(function)
    members = {"forward": staticmethod(forward), "backward": staticmethod(backward)}
    if separate:
        members["setup_context"] = staticmethod(setup_context)
    return type(function.__name__, (function,), members)


def has_setup_context(function: Any) -> bool:
    """Whether forward is written without ctx, which a setup_context of its own then fills."""
    return function.setup_context is not torch.autograd.Function.setup_context


class PlainContext:
    """Stands for ctx where autograd cannot be asked: keeps what it is given."""

    def __init__(self, count: int) -> None:
        self.saved_tensors: tuple[Any, ...] = ()
        self.needs_input_grad = (True,) * count

    def save_for_backward(self, *tensors: Any) -> None:
        self.saved_tensors = tensors

    def save_for_forward(self, *tensors: Any) -> None: ...
    def mark_dirty(self, *tensors: Any) -> None: ...
    def mark_non_differentiable(self, *tensors: Any) -> None: ...
    def set_materialize_grads(self, value: bool) -> None: ...


def apply_plainly(function: Any, inputs: Sequence[Any]) -> None:
    """Forward and backward as plain functions, without autograd."""
    ctx = PlainContext(len(inputs))
    with torch.no_grad():
        if has_setup_context(function):
            output = function.forward(*inputs)
            function.setup_context(ctx, tuple(inputs), output)
        else:
            output = function.forward(ctx, *inputs)
        outputs = output if isinstance(output, tuple) else (output,)
        function.backward(ctx, *(torch.ones_like(o) for o in outputs if isinstance(o, Tensor)))


def apply(function: Any, inputs: Sequence[Any], *, copies: bool = True) -> Any:
    """Call it with the same random numbers every time; with copies where it may write to its inputs."""
    kept = rng.capture()
    torch.manual_seed(0)
    try:
        return function.apply(
            *(x.clone() if copies and isinstance(x, Tensor) else x for x in inputs)
        )
    finally:
        rng.restore(kept)


def floats(inputs: Sequence[Any]) -> list[int]:
    """The places of the inputs that can have a gradient."""
    return [i for i, x in enumerate(inputs) if isinstance(x, Tensor) and x.is_floating_point()]


def moved(
    inputs: Sequence[Any], change: Callable[[Tensor], Tensor], *, grad: bool = True
) -> list[Any]:
    """The inputs with every floating-point tensor changed, as fresh leaves."""
    return [
        change(x.detach()).requires_grad_(grad)
        if isinstance(x, Tensor) and x.is_floating_point()
        else x
        for x in inputs
    ]
