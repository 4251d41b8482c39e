"""Half precision on a real GPU: types, speed, memory. Ratios, not times: those depend on the card."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext

import torch
from torch import nn

from fallline.proof.experiment import Measured, experiment
from fallline.proof.experiments._gpu import milliseconds, peak_bytes
from fallline.proof.experiments.precision._autocast import (
    OPERATIONS,
    contrastive,
    dispatched,
    half_embeddings,
    ran,
)

HALF, BRAIN, FULL = torch.float16, torch.bfloat16, torch.float32


@experiment(
    "autocast-types-on-the-gpu",
    claim="Operations that run on a GPU under autocast have the types that torch's dispatcher tells without one.",
    needs="cuda",
)
def autocast_types_on_the_gpu() -> Measured:
    real, told = ran("cuda"), dispatched("cuda")
    differ = [name for name in OPERATIONS if real[name] != told[name]]
    return Measured(
        sides={"ran on the GPU": real, "told by the dispatcher": told},
        conclusion=f"{len(OPERATIONS) - len(differ)} of {len(OPERATIONS)} operations have the type the dispatcher told; {sum(t == 'float32' for t in real.values())} run in float32",
        holds={"all types agree": not differ, "exp runs in float32": real["exp"] == "float32"},
    )


@experiment(
    "contrastive-loss-on-the-gpu",
    claim="On a GPU a contrastive loss at T = 0.07 is finite under autocast, and NaN once autocast is off for float16 embeddings.",
    taught="A contrastive loss becomes NaN under autocast because exp overflows in float16; disable autocast for it.",
    needs="cuda",
)
def contrastive_loss_on_the_gpu() -> Measured:
    z = half_embeddings("cuda")
    with torch.autocast("cuda", HALF):
        on, narrow = contrastive(z, 0.07), contrastive(z, 0.011)
        with torch.autocast("cuda", enabled=False):
            off, cast = contrastive(z, 0.07), contrastive(z.float(), 0.07)
    return Measured(
        sides={
            "autocast": {
                "loss at T = 0.07": f"{on.item():.2g}",
                "loss at T = 0.011": f"{narrow.item():g}",
            },
            "enabled=False": {"loss at T = 0.07": f"{off.item():g}"},
            "enabled=False and .float()": {"loss at T = 0.07": f"{cast.item():.2g}"},
        },
        conclusion=f"at T = 0.07: {on.item():.1e} under autocast, {off.item():g} with enabled=False, {cast.item():.1e} with .float() as well; at T = 0.011 {narrow.item():g}",
        holds={
            "finite under autocast": bool(on.isfinite()),
            "NaN with autocast off": bool(off.isnan()),
            "finite with .float()": bool(cast.isfinite()),
            "float32 overflows under T = 0.0113 as well": not bool(narrow.isfinite()),
        },
    )


@experiment(
    "amp-speedup-depends",
    claim="Mixed precision makes large layers several times faster and small ones slower: there is no one factor.",
    taught="AMP gives a speed-up of 2.",
    needs="cuda",
)
def amp_speedup_depends() -> Measured:
    widths = (64, 512, 2048, 8192)
    gains = {width: _gain(width) for width in widths}
    return Measured(
        sides={
            f"four layers of {width}": {
                "bfloat16 autocast, times faster than float32 without TF32": gain
            }
            for width, gain in gains.items()
        },
        conclusion="times faster with bfloat16 autocast than with float32 (no TF32): "
        + ", ".join(f"{gain:.1f} (width {width})" for width, gain in gains.items()),
        holds={
            "small layers are slower": gains[64] < 1,
            "large ones more than 1.5 times": gains[8192] > 1.5,
        },
        curves={"times faster": list(gains.values())},
        axes=("width of the layers", "times faster"),
        positions=widths,
    )


def _gain(width: int) -> float:
    """Of the quietest of three turns: the first in a process also loads kernels, and small steps are a matter of launches."""
    times = [(_step_time(width, None), _step_time(width, BRAIN)) for _ in range(3)]
    return min(full for full, _ in times) / min(half for _, half in times)


def _step_time(width: int, dtype: torch.dtype | None) -> float:
    torch.manual_seed(0)
    model = nn.Sequential(*(nn.Linear(width, width) for _ in range(4))).cuda()
    x = torch.randn(1024, width, device="cuda")

    def step() -> None:
        with torch.autocast("cuda", dtype) if dtype else nullcontext():
            loss = model(x).float().pow(2).mean()
        loss.backward()
        model.zero_grad()

    return milliseconds(step)


@experiment(
    "memory-bound-work-gains",
    claim="Operations that only move memory are nearly twice as fast in half precision, and activations take half the room.",
    taught="Mixed precision only helps compute-bound operations.",
    needs="cuda",
)
def memory_bound_work_gains() -> Measured:
    def copy_time(dtype: torch.dtype) -> float:
        x = torch.zeros(2**28, dtype=dtype, device="cuda")
        y = torch.empty_like(x)
        return milliseconds(lambda: y.copy_(x))

    def activations(dtype: torch.dtype | None) -> int:
        torch.manual_seed(0)
        model = nn.Sequential(
            *(m for _ in range(8) for m in (nn.Linear(512, 512), nn.GELU()))
        ).cuda()
        x = torch.randn(16384, 512, device="cuda")

        def forward() -> None:
            with torch.autocast("cuda", dtype) if dtype else nullcontext():
                model(x)

        return peak_bytes(forward)

    faster = copy_time(FULL) / copy_time(BRAIN)
    full, half = activations(None), activations(BRAIN)
    return Measured(
        sides={
            "float32": {"time of a copy": 1.0, "memory a forward pass needs, MiB": full / 2**20},
            "bfloat16": {
                "time of a copy": 1 / faster,
                "memory a forward pass needs, MiB": half / 2**20,
            },
        },
        conclusion=f"a copy of 268 million elements is {faster:.1f} times faster in bfloat16, and a forward pass needs {100 * half / full:.0f}% of the memory",
        holds={
            "copies at least 1.5 times faster": faster > 1.5,
            "at most 65 percent of the memory": half < 0.65 * full,
        },
    )


@experiment(
    "aligned-matmuls-on-the-gpu",
    claim="A matrix product with sizes that are multiples of 8 is as fast as one with multiples of 16, in float16 and bfloat16; odd sizes are slower.",
    taught="Tensor cores want multiples of 8 in float16 and of 16 in bfloat16.",
    needs="cuda",
)
def aligned_matmuls_on_the_gpu() -> Measured:
    slower: dict[str, dict[int, float]] = {}
    for name, dtype in (("float16", HALF), ("bfloat16", BRAIN)):
        times = {
            size: milliseconds(_product(size, dtype)) / size for size in (4096, 4104, 4100, 4097)
        }
        slower[name] = {size: time / times[4096] for size, time in times.items()}
    eight = max(found[4104] for found in slower.values())
    odd = min(found[4097] for found in slower.values())
    return Measured(
        sides={
            name: {
                "4104 = 8 · 513, time per row against 4096": found[4104],
                "4100 = 4 · 1025, time per row against 4096": found[4100],
                "4097, time per row against 4096": found[4097],
            }
            for name, found in slower.items()
        },
        conclusion=f"rows of 4104 (a multiple of 8, not of 16) take at most {eight:.2f} times as long as rows of 4096, rows of 4097 at least {odd:.1f} times",
        holds={
            "multiples of 8 are within 25 percent": eight < 1.25,
            "odd sizes are at least 1.3 times slower": odd > 1.3,
        },
    )


def _product(size: int, dtype: torch.dtype) -> Callable[[], object]:
    """4096 rows times a matrix of `size` by 4096: only the inner size, along which rows lie in memory, changes."""
    a = torch.randn(4096, size, device="cuda", dtype=dtype)
    b = torch.randn(4096, size, device="cuda", dtype=dtype)
    return lambda: a @ b.T


@experiment(
    "bf16-is-native-on-the-gpu",
    claim="is_bf16_supported(including_emulation=False) tells whether a card has bfloat16 in hardware: those of capability 8.0 and newer.",
    needs="cuda",
)
def bf16_is_native_on_the_gpu() -> Measured:
    native, any_kind = (
        torch.cuda.is_bf16_supported(including_emulation=False),
        torch.cuda.is_bf16_supported(),
    )
    major, minor = torch.cuda.get_device_capability()
    return Measured(
        sides={
            torch.cuda.get_device_name(): {
                "native": native,
                "native or emulated": any_kind,
                "capability": f"{major}.{minor}",
            }
        },
        conclusion=f"capability {major}.{minor}: native {native}, native or emulated {any_kind}",
        holds={
            "native from 8.0 on": native == (major >= 8),
            "emulation counts by default": any_kind or not native,
        },
    )
