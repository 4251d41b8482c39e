"""float16 and bfloat16: what they can hold, and what overflows, underflows or saves memory in them."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils._python_dispatch import TorchDispatchMode

from fallline.proof.experiment import Measured, experiment
from fallline.proof.experiments._measures import saved_bytes
from fallline.proof.experiments._training import cosine, gradient

HALF, BRAIN, FULL = torch.float16, torch.bfloat16, torch.float32
NAMES = {HALF: "float16", BRAIN: "bfloat16", FULL: "float32"}


def _every(dtype: torch.dtype) -> Tensor:
    """Every finite number of a two-byte type, in order."""
    values = torch.arange(2**16, dtype=torch.int32).to(torch.int16).view(dtype)
    return values[values.isfinite()].sort().values


def _smallest_normal(dtype: torch.dtype) -> float:
    """The smallest number of a two-byte type with its full precision: the next one is at most 2^-bits away."""
    positive = _every(dtype)
    positive = positive[positive > 0].double()
    gaps = positive.diff() / positive[:-1]
    return float(positive[:-1][gaps <= torch.finfo(dtype).eps][0])


def _largest_exp(dtype: torch.dtype) -> float:
    """The largest x of a type whose exp is finite: tried for each number of a two-byte type, else by bisection."""
    if dtype != FULL:
        values = _every(dtype)
        return float(values[values.exp().isfinite()].max())
    low, high = torch.tensor(80.0), torch.tensor(100.0)
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if middle.exp().isfinite() else (low, middle)
    return float(low)


@experiment(
    "fp16-exp-limit",
    claim="exp overflows float16 above 11.09.",
    taught="The largest exp argument in float16 is about 88.",
)
def fp16_exp_limit() -> Measured:
    values = _every(HALF)
    limit = _largest_exp(HALF)
    beyond = values[values > limit][0]
    positions = torch.linspace(8, 12, 41)
    return Measured(
        sides={
            f"exp({limit:.5f})": {"in float16": float(torch.tensor(limit, dtype=HALF).exp())},
            f"exp({float(beyond):.5f})": {"in float16": str(float(beyond.exp()))},
            "exp(88)": {"in float16": str(float(torch.tensor(88.0, dtype=HALF).exp()))},
        },
        conclusion=f"of all float16 numbers the largest with a finite exp is {limit:.4f}",
        holds={
            "between 11.08 and 11.10": 11.08 < limit < 11.10,
            "nothing above is finite": not bool(values[values > limit].exp().isfinite().any()),
        },
        curves={"float16": positions.to(HALF).exp().tolist(), "float32": positions.exp().tolist()},
        axes=("x", "exp(x)"),
        positions=positions.tolist(),
    )


@experiment(
    "exp-limits",
    claim="exp overflows above 88.72 in float32, 88.5 in bfloat16 and 11.09 in float16.",
    taught="exp overflows once logits exceed 100.",
)
def exp_limits() -> Measured:
    limits = {name: _largest_exp(dtype) for dtype, name in NAMES.items()}
    return Measured(
        sides={name: {"largest x with a finite exp": x} for name, x in limits.items()},
        conclusion=", ".join(f"{name} {x:.2f}" for name, x in limits.items()),
        holds={
            "float32 88.72": abs(limits["float32"] - 88.7228) < 1e-3,
            "bfloat16 88.5": limits["bfloat16"] == 88.5,
            "float16 11.09": abs(limits["float16"] - 11.0859) < 1e-2,
        },
    )


@experiment(
    "half-ranges",
    claim="float16 holds 6.1e-5 to 65504 at full precision and down to 6.0e-8 with less; bfloat16 1.2e-38 to 3.4e38, down to 9.2e-41.",
    taught="float16's smallest number is 5.96e-8 and bfloat16's 1.18e-38 (the one is subnormal, the other normal).",
)
def half_ranges() -> Measured:
    sides = {}
    for dtype in (HALF, BRAIN):
        positive = _every(dtype)
        positive = positive[positive > 0].double()
        sides[NAMES[dtype]] = {
            "smallest (subnormal)": float(positive[0]),
            "smallest at full precision (normal)": _smallest_normal(dtype),
            "largest": float(positive[-1]),
        }
    half, brain = sides["float16"], sides["bfloat16"]
    return Measured(
        sides=sides,
        conclusion=(
            f"float16: {half['smallest (subnormal)']:.2e} subnormal, {half['smallest at full precision (normal)']:.2e} normal, {half['largest']:.0f} largest; "
            f"bfloat16: {brain['smallest (subnormal)']:.2e}, {brain['smallest at full precision (normal)']:.2e}, {brain['largest']:.2e}"
        ),
        holds={
            "float16's numbers": half["largest"] == 65504
            and abs(half["smallest (subnormal)"] / 5.96e-8 - 1) < 1e-3
            and abs(half["smallest at full precision (normal)"] / 6.10e-5 - 1) < 1e-3,
            "bfloat16's numbers": abs(brain["largest"] / 3.39e38 - 1) < 1e-3
            and abs(brain["smallest (subnormal)"] / 9.18e-41 - 1) < 1e-3
            and abs(brain["smallest at full precision (normal)"] / 1.175e-38 - 1) < 1e-3,
        },
    )


@experiment(
    "half-mantissas",
    claim="float16 has 10 mantissa bits, bfloat16 7: above 2048 and 256 they skip integers.",
)
def half_mantissas() -> Measured:
    bits, skipped = {}, {}
    for dtype in (HALF, BRAIN):
        values = _every(dtype)
        above_one = values[values > 1][0].double() - 1
        bits[NAMES[dtype]] = int(-above_one.log2())
        integers = torch.arange(1, 5000, dtype=torch.float64)
        skipped[NAMES[dtype]] = int(integers[integers.to(dtype).double() != integers][0])
    return Measured(
        sides={
            name: {"mantissa bits": bits[name], "first integer it cannot hold": skipped[name]}
            for name in bits
        },
        conclusion=f"float16 has {bits['float16']} mantissa bits and cannot hold {skipped['float16']}, bfloat16 has {bits['bfloat16']} and cannot hold {skipped['bfloat16']}",
        holds={
            "10 and 7 bits": bits == {"float16": 10, "bfloat16": 7},
            "2049 and 257 are lost": skipped == {"float16": 2049, "bfloat16": 257},
        },
    )


@experiment(
    "bf16-range-is-fp32",
    claim="bfloat16 has float32's range: the same smallest normal number, and a largest within half a percent.",
)
def bf16_range_is_fp32() -> Measured:
    brain, full = float(_every(BRAIN).max()), torch.finfo(FULL).max
    brain_normal, full_normal = _smallest_normal(BRAIN), torch.finfo(FULL).smallest_normal
    kept = torch.tensor([1e-37, 1e37]).to(BRAIN).float()
    lost = torch.tensor([1e-37, 1e37]).to(HALF).float()
    return Measured(
        sides={
            "bfloat16": {
                "largest": brain,
                "smallest normal number": brain_normal,
                "1e-37 becomes": float(kept[0]),
                "1e37 becomes": float(kept[1]),
            },
            "float16": {
                "largest": float(_every(HALF).max()),
                "smallest normal number": _smallest_normal(HALF),
                "1e-37 becomes": float(lost[0]),
                "1e37 becomes": str(float(lost[1])),
            },
        },
        conclusion=f"bfloat16's largest is {brain:.4e}, float32's {full:.4e}, the smallest normal numbers {brain_normal:.4e} and {full_normal:.4e}; 1e-37 and 1e37 survive in bfloat16 and become {lost[0]:g} and {lost[1]:g} in float16",
        holds={
            "the largest is within half a percent": abs(brain / full - 1) < 0.005,
            "the smallest normal number is the same": brain_normal == full_normal,
            "what float32 holds bfloat16 holds": bool((kept.isfinite() & (kept > 0)).all()),
            "float16 does not": float(lost[0]) == 0 and bool(lost[1].isinf()),
        },
    )


@experiment(
    "fp16-overflow-operations",
    claim="Matrix products, hand-written variances and sums of values that fit into float16 can overflow it; in bfloat16 they fit.",
)
def fp16_overflow_operations() -> Measured:
    def tried(dtype: torch.dtype) -> dict[str, float]:
        a = torch.full((4, 1024), 300.0, dtype=dtype)
        x = torch.linspace(-2e4, 2e4, 64).to(dtype)
        return {
            "1024 products of 300 · 300": float((a @ a.T)[0, 0]),
            "mean(x²), x up to 20,000": float((x * x).mean()),
            "sum of 1000 times 100": float(torch.full((1000,), 100.0, dtype=dtype).sum()),
        }

    half, brain = tried(HALF), tried(BRAIN)
    infinite = sum(v == float("inf") for v in half.values())
    return Measured(
        sides={
            "float16": {name: str(value) for name, value in half.items()},
            "bfloat16": {name: f"{value:.2g}" for name, value in brain.items()},
        },
        conclusion=f"in float16 {infinite} of 3 results from values it holds are inf, in bfloat16 none",
        holds={
            "all three overflow float16": infinite == 3,
            "none overflows bfloat16": all(abs(v) < float("inf") for v in brain.values()),
        },
    )


@experiment(
    "fp16-needs-scaler-bf16-not",
    claim="Small gradients are zero in float16 without a scaler; with one, or in bfloat16, none is lost.",
)
def fp16_needs_scaler_bf16_not() -> Measured:
    def zeros(dtype: torch.dtype, scale: float) -> float:
        """The share of gradients that come out as exactly zero."""
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(32, 64), nn.Tanh(), nn.Linear(64, 16)).to(dtype)
        x, y = torch.randn(64, 32, dtype=dtype), torch.randn(64, 16, dtype=dtype)
        loss = F.mse_loss(model(x).float(), y.float()) * 1e-6
        (loss * scale).backward()
        return float((gradient(model) == 0).float().mean())

    found = {
        "float16": zeros(HALF, 1.0),
        "float16, loss times 65536": zeros(HALF, 65536.0),
        "bfloat16": zeros(BRAIN, 1.0),
    }
    return Measured(
        sides={
            name: {"gradients that are zero, percent": 100 * share} for name, share in found.items()
        },
        conclusion=", ".join(
            f"{name}: {100 * share:.0f}% of the gradients are zero" for name, share in found.items()
        ),
        holds={
            "float16 loses nearly all": found["float16"] > 0.9,
            "a scale brings them back": found["float16, loss times 65536"] < 0.01,
            "bfloat16 needs none": found["bfloat16"] < 0.01,
        },
    )


@experiment(
    "normalize-in-fp16",
    claim="F.normalize in float16 keeps the direction of tiny vectors, but a zero vector becomes NaN and a long one all zeros.",
    taught="F.normalize in float16 loses precision for small embeddings.",
)
def normalize_in_fp16() -> Measured:
    torch.manual_seed(0)
    small = torch.randn(256)

    def normalized(dtype: torch.dtype) -> tuple[float, float, float]:
        """The direction of tiny values, what a zero vector and what a long one become."""
        tiny = F.normalize((small * 1e-5).to(dtype), dim=0)
        zero = F.normalize(torch.zeros(8, dtype=dtype), dim=0)
        long = F.normalize(torch.full((4096,), 2000.0, dtype=dtype), dim=0)
        return cosine(tiny.float(), small), float(zero[0]), float(long[0])

    half, full = normalized(HALF), normalized(FULL)
    return Measured(
        sides={
            name: {
                "cosine to the direction, values of 1e-5": direction,
                "a zero vector becomes": f"{zero:g}",
                "4096 values of 2000 become": long,
            }
            for name, (direction, zero, long) in (("float16", half), ("float32", full))
        },
        conclusion=f"values of 1e-5 keep a cosine of {half[0]:.4f}; a zero vector becomes {half[1]:g} (float32: {full[1]:g}), 4096 values of 2000 become {half[2]:g} each (float32: {full[2]:.4f})",
        holds={
            "direction kept": half[0] > 0.99,
            "a zero vector is NaN": half[1] != half[1],
            "in float32 it is zero": full[1] == 0,
            "a long vector is all zeros": half[2] == 0 and abs(full[2] - 1 / 64) < 1e-6,
        },
    )


@experiment(
    "layer-norm-in-fp16",
    claim="F.layer_norm of float16 values is right at sizes of 1e-4, 1 and 30,000; a hand-written one is wrong for the large ones.",
    taught="LayerNorm's denominators underflow in float16.",
)
def layer_norm_in_fp16() -> Measured:
    torch.manual_seed(0)
    found = {}
    for scale in (1e-4, 1.0, 3e4):
        x = (torch.randn(64, 256) * scale).clamp(-6e4, 6e4).to(HALF)
        exact = F.layer_norm(x.double(), (256,))
        built_in = F.layer_norm(x, (256,)).double()
        centred = x - x.mean(-1, keepdim=True)
        by_hand = (centred / (centred.pow(2).mean(-1, keepdim=True) + 1e-5).sqrt()).double()
        found[scale] = (_worst(built_in, exact), _worst(by_hand, exact))
    return Measured(
        sides={
            f"values of {scale:g}": {"F.layer_norm is off by": a, "by hand is off by": b}
            for scale, (a, b) in found.items()
        },
        conclusion=f"F.layer_norm is off by at most {max(a for a, _ in found.values()):.0e}; by hand values of 30,000 come out {'NaN' if found[3e4][1] != found[3e4][1] else f'wrong by {found[3e4][1]:.1f}'}",
        holds={
            "F.layer_norm is right at each scale": all(a < 0.01 for a, _ in found.values()),
            "by hand it is not for large values": not found[3e4][1]
            < 0.5,  # NaN is not right either
        },
    )


def _worst(a: Tensor, b: Tensor) -> float:
    return float((a - b).abs().max())


@experiment(
    "half-precision-saves-memory-traffic",
    claim="Under autocast memory-bound operations between matrix products read and write half the bytes, and the activations kept are nearly halved.",
    taught="Mixed precision only helps compute-bound operations.",
)
def half_precision_saves_memory_traffic() -> Measured:
    torch.manual_seed(0)
    model = nn.Sequential(*(m for _ in range(4) for m in (nn.Linear(128, 128), nn.GELU())))
    x = torch.randn(256, 128)
    kept: dict[bool, int] = {}
    moved: dict[bool, int] = {}
    for enabled in (False, True):
        with saved_bytes(model) as sizes, torch.autocast("cpu", BRAIN, enabled=enabled):
            out = model(x)
            # Autocast's copies of the weights are no activations.
            kept[enabled] = sum(size for size in sizes if size >= 256 * 128 * 2)
        out.sum().backward()
        with _Moved("gelu") as gelu, torch.autocast("cpu", BRAIN, enabled=enabled):
            model(x)
        moved[enabled] = gelu.bytes
    return Measured(
        sides={
            "float32": {
                "bytes kept for the backward pass": kept[False],
                "bytes that 4 GELUs read and write": moved[False],
            },
            "bfloat16 autocast": {
                "bytes kept for the backward pass": kept[True],
                "bytes that 4 GELUs read and write": moved[True],
            },
        },
        conclusion=f"autocast keeps {kept[True]:,} bytes for the backward pass instead of {kept[False]:,}; 4 GELUs read and write {moved[True]:,} bytes instead of {moved[False]:,}",
        holds={
            "at most 65 percent of the activations": kept[True] < 0.65 * kept[False],
            "half the traffic": moved[False] == 2 * moved[True] > 0,
        },
    )


class _Moved(TorchDispatchMode):
    """The bytes of the tensors that go into an operation and come out of it."""

    def __init__(self, operation: str) -> None:
        super().__init__()
        self.operation, self.bytes = operation, 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        if func.overloadpacket.__name__ == self.operation:
            self.bytes += sum(t.nbytes for t in (*args, out) if isinstance(t, Tensor))
        return out


@experiment(
    "tensor-core-alignment",
    claim="Matrix sizes should be multiples of 8 in float16 and bfloat16 alike (16-byte rows), says torch's own padding pass; 4 in float32.",
    taught="Tensor cores want multiples of 8 in float16 and of 16 in bfloat16.",
)
def tensor_core_alignment() -> Measured:
    from torch._inductor.fx_passes.pad_mm import get_alignment_size_dtype

    multiples = {name: get_alignment_size_dtype(dtype) for dtype, name in NAMES.items()}
    return Measured(
        sides={name: {"torch pads to multiples of": n} for name, n in multiples.items()},
        conclusion="read from torch._inductor.fx_passes.pad_mm, not timed here: "
        + ", ".join(f"{name} {n}" for name, n in multiples.items()),
        holds={"8, 8 and 4": multiples == {"float16": 8, "bfloat16": 8, "float32": 4}},
    )


@experiment(
    "bf16-native-or-emulated",
    claim="torch.cuda.is_bf16_supported() also counts emulation unless told otherwise, and CPUs run bfloat16 as well.",
    taught="bfloat16 requires an Ampere GPU or newer.",
)
def bf16_native_or_emulated() -> Measured:
    import inspect

    counted = (
        inspect.signature(torch.cuda.is_bf16_supported).parameters["including_emulation"].default
    )
    product = torch.ones(8, 8, dtype=BRAIN) @ torch.ones(8, 8, dtype=BRAIN)
    return Measured(
        sides={
            "is_bf16_supported()": {"counts emulation": bool(counted)},
            "is_bf16_supported(including_emulation=False)": {"counts emulation": False},
        },
        conclusion="is_bf16_supported() counts emulation by default, so it does not tell native support; bfloat16 also runs on this CPU",
        holds={
            "emulation counts by default": counted is True,
            "the CPU runs it": float(product[0, 0]) == 8 and product.dtype == BRAIN,
        },
    )
