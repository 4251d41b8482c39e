"""TF32 on a real GPU: what it gains in a matmul, what it loses, and which flag decides."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from fallline.proof.experiment import Measured, experiment
from fallline.proof.experiments._gpu import milliseconds


@experiment(
    "tf32-on-the-gpu",
    claim="On a GPU TF32 makes a large float32 matmul several times faster at an error of about 3e-4 of a product; matmuls leave it off until they are told, and bfloat16 autocast is not touched by it.",
    taught="Float32 on an Ampere or newer GPU uses TF32 by default.",
    needs="cuda",
)
def tf32_on_the_gpu() -> Measured:
    torch.manual_seed(0)
    default = torch.backends.cuda.matmul.allow_tf32
    a, b = (torch.randn(4096, 4096, device="cuda") for _ in range(2))
    exact = a.double() @ b.double()
    error, time, half = {}, {}, {}
    for name, on in (("float32", False), ("TF32", True)):
        with _tf32(on):
            error[name] = float(((a @ b).double() - exact).abs().mean() / exact.abs().mean())
            time[name] = milliseconds(lambda: a @ b)
            with torch.autocast("cuda", torch.bfloat16):
                half[name] = a @ b
    faster, coarser = time["float32"] / time["TF32"], error["TF32"] / error["float32"]
    same = bool(torch.equal(half["float32"], half["TF32"]))
    return Measured(
        sides={
            **{name: {"mean error of a product": value} for name, value in error.items()},
            "flags": {"matmuls use TF32 by default": default, "times faster with it": faster},
        },
        conclusion=f"a product of 4096 by 4096 is {faster:.1f} times faster with TF32, with a mean error of {error['TF32']:.0e} against {error['float32']:.0e}; on by default: {default}; the same under bfloat16 autocast: {same}",
        holds={
            "off for matmuls by default": not default,
            "at least twice as fast": faster > 2,
            "about three digits": 1e-4 < error["TF32"] < 1e-3,
            "far coarser than float32": coarser > 100,
            "bfloat16 autocast is the same with and without": same,
        },
    )


@contextmanager
def _tf32(on: bool) -> Iterator[None]:
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high" if on else "highest")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)
