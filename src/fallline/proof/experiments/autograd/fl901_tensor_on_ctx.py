"""FL901: tensors as attributes of ctx instead of save_for_backward."""

from __future__ import annotations

import gc
import weakref
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function
from torch.autograd.graph import saved_tensors_hooks

from fallline.proof.experiment import Measured, experiment

OUTPUTS = 20


@experiment(
    "FL901",
    claim="A tensor on ctx gives a wrong gradient in silence after an in-place change, an output on ctx outlives its last "
    "reference, and saved-tensor hooks see neither; save_for_backward raises, lets go and is seen.",
)
def tensor_on_ctx() -> Measured:
    wrong, right = _after_in_place(_SquareKept), _after_in_place(_SquareSaved)
    wrong_alive, right_alive = (
        _outputs_alive(_ExpKept),
        _outputs_alive(_ExpSaved),
    )
    wrong_seen, right_seen = _seen_by_hooks(_SquareKept), _seen_by_hooks(_SquareSaved)
    return Measured(
        sides={
            "wrong": {
                "gradient of x * x at 3 after x was set to 0": wrong,
                "outputs of 20 alive without a reference": wrong_alive,
                "tensors that saved-tensor hooks see": wrong_seen,
            },
            "right": {
                "gradient of x * x at 3 after x was set to 0": right,
                "outputs of 20 alive without a reference": right_alive,
                "tensors that saved-tensor hooks see": right_seen,
            },
        },
        conclusion=f"after an in-place change the gradient of x * x at 3 comes out as {wrong} instead of 6.0 from ctx.x, and as a "
        f"{right} from save_for_backward; of {OUTPUTS} outputs {wrong_alive} and {right_alive} outlive their "
        f"last reference, and hooks see {wrong_seen} and {right_seen} tensors",
        holds={
            "an attribute gives a wrong gradient in silence": wrong == 0.0,
            "a saved tensor raises": right == "RuntimeError",
            "an output on ctx outlives its last reference": (wrong_alive, right_alive)
            == (OUTPUTS, 0),
            "saved-tensor hooks see only what was saved": (wrong_seen, right_seen) == (0, 1),
        },
    )


class _SquareKept(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.x = x
        return x * x

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        x: Tensor = ctx.x
        return 2 * x * grad


class _SquareSaved(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x * x

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        x: Tensor = ctx.saved_tensors[0]
        return 2 * x * grad


class _ExpKept(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        y = x.exp()
        ctx.y = y
        return y

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        y: Tensor = ctx.y
        return y * grad


class _ExpSaved(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        y = x.exp()
        ctx.save_for_backward(y)
        return y

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        y: Tensor = ctx.saved_tensors[0]
        return y * grad


def _after_in_place(function: type[Function]) -> float | str:
    """The gradient of x * x where x is overwritten between the forward and the backward pass."""
    w = torch.tensor(3.0, requires_grad=True)
    x = w.clone()
    y = function.apply(x)
    with torch.no_grad():
        x.zero_()
    try:
        y.backward()
    except RuntimeError as error:
        return type(error).__name__
    assert w.grad is not None
    return w.grad.item()


def _outputs_alive(function: type[Function]) -> int:
    """How many of 20 outputs are still there when nobody refers to them and the collector has not run."""
    x = torch.ones(1000, requires_grad=True)
    gc.disable()
    try:
        outputs = [weakref.ref(function.apply(x)) for _ in range(OUTPUTS)]
        return sum(output() is not None for output in outputs)
    finally:
        gc.enable()


def _seen_by_hooks(function: type[Function]) -> int:
    seen = []

    def pack(tensor: Tensor) -> Tensor:
        seen.append(tensor.shape)
        return tensor

    with saved_tensors_hooks(pack, lambda tensor: tensor):
        function.apply(torch.ones(3, requires_grad=True))
    return len(seen)
