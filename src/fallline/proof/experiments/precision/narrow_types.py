"""Where a narrower type comes in without a word: a custom Function under autocast, and TF32."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from fallline.proof.experiment import Measured, experiment


@experiment(
    "autocast-acts-inside-a-function",
    claim="Inside a custom Function autocast still casts: its matmul runs in bfloat16, unless custom_fwd(cast_inputs=float32) switches autocast off there and casts the inputs.",
)
def autocast_acts_inside_a_function() -> Measured:
    bare, cast = _types(cast=False), _types(cast=True)
    return Measured(
        sides={
            "plain forward": {"type of its matmul": bare[0], "type of its input": bare[1]},
            "custom_fwd": {"type of its matmul": cast[0], "type of its input": cast[1]},
        },
        conclusion=f"a plain forward computes in {bare[0]}; with custom_fwd the bfloat16 input arrives as {cast[1]} and is multiplied in {cast[0]}",
        holds={
            "autocast acts inside": bare[0] == "bfloat16",
            "custom_fwd casts the input": cast[1] == "float32",
            "and switches autocast off": cast[0] == "float32",
        },
    )


def _types(cast: bool) -> tuple[str, str]:
    seen: list[str] = []

    def forward(ctx: Any, x: Tensor) -> Tensor:
        out = x @ x
        seen.extend(str(t.dtype).removeprefix("torch.") for t in (out, x))
        return out

    wrapped = torch.amp.custom_fwd(forward, device_type="cpu", cast_inputs=torch.float32)
    given = wrapped if cast else forward

    class Squared(torch.autograd.Function):
        pass

    Squared.forward = staticmethod(given)  # type: ignore[method-assign]
    with torch.autocast("cpu", dtype=torch.bfloat16):
        Squared.apply(torch.eye(4, dtype=torch.bfloat16))
    return seen[0], seen[1]


@experiment(
    "tf32-keeps-three-digits",
    claim="TF32 rounds the inputs of a float32 matmul to 10 bits of mantissa: an error of about 3e-4 of a product, where float32 has 2e-7; it is on for convolutions and off for matmuls unless you say so.",
    taught="TF32 is float32 that is faster.",
)
def tf32_keeps_three_digits() -> Measured:
    torch.manual_seed(0)
    a, b = torch.randn(256, 256), torch.randn(256, 256)
    exact = a.double() @ b.double()
    scale = exact.abs().mean()
    full = float(((a @ b).double() - exact).abs().mean() / scale)
    rounded = float(((_ten_bits(a) @ _ten_bits(b)).double() - exact).abs().mean() / scale)
    matmul, conv = torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32
    return Measured(
        sides={
            "float32": {"mean error of a product": full},
            "inputs of 10 bits": {"mean error of a product": rounded},
            "defaults": {"matmul uses TF32": matmul, "cuDNN convolutions use TF32": conv},
        },
        conclusion=f"a mean error of {full:.0e} in float32 and of {rounded:.0e} with inputs rounded as TF32 does; by default on for convolutions: {conv}, for matmuls: {matmul}",
        holds={
            "a thousand times coarser": rounded > 500 * full,
            "about three digits": 1e-4 < rounded < 2e-3,
            "off for matmuls, on for convolutions": conv and not matmul,
        },
    )


def _ten_bits(x: Tensor) -> Tensor:
    """A float32 as the tensor cores read it: 13 of the 23 bits of its mantissa rounded away."""
    return ((x.view(torch.int32) + 0x1000) & ~0x1FFF).view(torch.float32)
