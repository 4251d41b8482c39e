"""FL205: backward inside and outside the autocast block, for torch's own layers, a hand-written function and a hook."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from fallline.proof.experiment import Measured, experiment
from fallline.proof.experiments._training import gradient, off


@experiment(
    "FL205",
    claim="Under autocast whatever a backward pass computes by itself is cast to half precision; Linear, LayerNorm, GELU and a Transformer layer give the same gradients either way.",
)
def backward_in_autocast() -> Measured:
    own = max(
        _gradient_off(nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.Linear(32, 16))),
        _gradient_off(nn.Sequential(nn.Linear(16, 32), nn.LayerNorm(32), nn.Linear(32, 16))),
        _gradient_off(nn.TransformerEncoderLayer(16, 2, 32, dropout=0.0)),
    )
    function = _gradient_off(nn.Sequential(nn.Linear(16, 16), _HandWritten()))
    hook = _gradient_off(nn.Sequential(nn.Linear(16, 16), _Hooked()))
    inside, outside = _dtype_in_backward(inside=True), _dtype_in_backward(inside=False)
    return Measured(
        sides={
            "wrong": {
                "a matmul in a hand-written backward runs in": inside,
                "gradient off by, percent, hand-written function": 100 * function,
                "gradient off by, percent, hook": 100 * hook,
                "gradient off by, percent, torch's own layers": 100 * own,
            },
            "right": {
                "a matmul in a hand-written backward runs in": outside,
                "gradient off by, percent, hand-written function": 0.0,
            },
        },
        conclusion=f"inside the block a matmul of a hand-written backward runs in {inside} instead of {outside} and moves the gradient by {function:.1%}, one in a hook by {hook:.1%}; "
        f"torch's own layers differ by {own:g}",
        holds={
            "a hand-written backward is cast": inside == "bfloat16" and outside == "float32",
            "and its gradient changes": function > 1e-4,
            "a hook's too": hook > 1e-4,
            "torch's own layers give the same bits": own == 0,
        },
    )


class _Project(torch.autograd.Function):
    """The identity, whose backward multiplies by a matrix in float32."""

    dtype = ""

    @staticmethod
    def forward(ctx: Any, x: Tensor, matrix: Tensor) -> Tensor:
        ctx.save_for_backward(matrix)
        return x.clone()

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        (matrix,) = ctx.saved_tensors
        product = gradients[0] @ matrix
        _Project.dtype = str(product.dtype).removeprefix("torch.")
        return product.float(), None


def _matrix() -> Tensor:
    return torch.randn(16, 16, generator=torch.Generator().manual_seed(1))


class _HandWritten(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return _Project.apply(x.float(), _matrix())  # type: ignore[no-any-return]


class _Hooked(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        x = x.float()
        x.register_hook(lambda gradient: (gradient @ _matrix()).float())
        return x


def _backward(model: nn.Module, *, inside: bool) -> Tensor:
    model.zero_grad()
    x = torch.randn(64, 16, generator=torch.Generator().manual_seed(2))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        loss = model(x).float().square().mean()
        if inside:
            loss.backward()
    if not inside:
        loss.backward()
    return gradient(model)


def _gradient_off(model: nn.Module) -> float:
    return off(_backward(model, inside=True), _backward(model, inside=False))


def _dtype_in_backward(*, inside: bool) -> str:
    torch.manual_seed(0)
    _backward(nn.Sequential(nn.Linear(16, 16), _HandWritten()), inside=inside)
    return _Project.dtype
