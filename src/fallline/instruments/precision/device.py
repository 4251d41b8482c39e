"""What this device can do, asked from torch: half types in hardware, the speed of the code, and of matrices that fit."""

from __future__ import annotations

import platform
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from fallline.instruments.precision.formats import Format, own_autocast
from fallline.instruments.precision.record import Operation
from fallline.instruments.untouched import World, leaves_of, loss_of, untouched

__all__ = ["Matmul", "device_name", "matmuls", "native", "speed", "time_padding"]

ROUNDS = 5
SECONDS = 0.4  # of measuring for one format in one round, at most one run over it
# Rows of 16 bytes: so many elements of a half type, and of a type of one byte (fp8, int8).
ALIGNED, ALIGNED_ONE_BYTE = 8, 16
MOST_PADDED = 8


def device_name(device: str) -> str:
    if device == "cuda":
        return torch.cuda.get_device_name()
    if device == "cpu":
        return _processor()
    return device


def _processor() -> str:
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as file:
            line = next(x for x in file if x.startswith("model name"))
        return line.partition(":")[2].strip()
    except (OSError, StopIteration):
        return platform.processor() or platform.machine()


def native(device: str) -> dict[str, bool | None]:
    """Whether the types are in the hardware or emulated; None where torch cannot tell."""
    if device == "cuda":
        capability = torch.cuda.get_device_capability()
        return {
            "fp16": capability >= (7, 0),
            "bf16": torch.cuda.is_bf16_supported(including_emulation=False),
        }
    if device == "cpu":
        ask = [
            getattr(torch.cpu, f"_is_{name}_supported", None)
            for name in ("avx512_bf16", "amx_tile")
        ]
        half = getattr(torch.cpu, "_is_amx_fp16_supported", None)
        known = [bool(f()) for f in ask if f is not None]
        return {
            "fp16": bool(half()) if half is not None else None,
            "bf16": any(known) if known else None,
        }
    return {"fp16": None, "bf16": None}


# -- speed ---------------------------------------------------------------------------------------------------------


def speed(
    run: Callable[[], Any], world: World, device: str, formats: list[Format]
) -> dict[str, float]:
    """Seconds for one forward and backward in each format, the fastest of several rounds in turns."""
    best: dict[str, float] = {}
    for _ in range(ROUNDS):
        for format in formats:
            with untouched(world, swap_buffers=True):
                taken = _timed(run, device, format, warm=format.name not in best)
            best[format.name] = min(best.get(format.name, taken), taken)
    return best


def _timed(run: Callable[[], Any], device: str, format: Format, *, warm: bool) -> float:
    leaves: list[Tensor] | None = None

    def once() -> None:
        nonlocal leaves
        # left and entered again each time, as a training loop does: autocast keeps its casts of the weights until then
        with own_autocast(device, format.autocast):
            loss, _ = loss_of(run)
        if leaves is None and loss is not None:
            leaves = leaves_of(loss)
        _gradients(loss, leaves)

    for _ in range(3 if warm else 1):
        once()
    _wait(device)
    count, began = 0, time.perf_counter()
    while True:
        once()
        count += 1
        if count % 4 == 0 or device == "cpu":
            _wait(device)
            if time.perf_counter() - began > SECONDS / ROUNDS:
                break
    return (time.perf_counter() - began) / count


def _gradients(loss: Tensor | None, leaves: list[Tensor] | None) -> None:
    if loss is not None and leaves:
        torch.autograd.grad(loss, leaves, allow_unused=True)


def _wait(device: str) -> None:
    if device == "cuda":
        torch.cuda.synchronize()
    elif device == "mps":
        torch.mps.synchronize()


# -- matrices ------------------------------------------------------------------------------------------------------


@dataclass
class Matmul:
    """One product of matrices of the code (several with the same shape from one line count once)."""

    op: str
    phase: str
    module: str | None
    path: str | None
    line: int | None
    shape: tuple[int, int, int, int]  # batch, m, k, n
    transposed: tuple[bool, bool] = (False, False)
    count: int = 1
    seconds: float | None = None  # measured on a GPU
    padded_seconds: float | None = None

    @property
    def padded(self) -> tuple[int, int, int, int]:
        return _padded(self.shape, ALIGNED, conv=self.op == "conv")

    @property
    def aligned(self) -> bool:
        return self.padded == self.shape

    @property
    def aligned_one_byte(self) -> bool:
        return _padded(self.shape, ALIGNED_ONE_BYTE, conv=self.op == "conv") == self.shape

    @property
    def cost(self) -> float:
        """Arithmetic that padding would add, as a share."""
        before = after = 1.0
        for size, whole in zip(self.shape, self.padded, strict=True):
            before, after = before * size, after * whole
        return after / before - 1 if before else 0.0

    def to_json(self) -> dict[str, Any]:
        batch, m, k, n = self.shape
        return {
            "op": self.op,
            "phase": self.phase,
            "module": self.module,
            "path": self.path,
            "line": self.line,
            "batch": batch,
            "m": m,
            "k": k,
            "n": n,
            "count": self.count,
            "aligned": self.aligned,
            "aligned_one_byte_types": self.aligned_one_byte,
            "padded": list(self.padded[1:]),
            "padding_cost": self.cost,
            "seconds": self.seconds,
            "padded_seconds": self.padded_seconds,
        }


def _padded(shape: tuple[int, int, int, int], to: int, *, conv: bool) -> tuple[int, int, int, int]:
    batch, m, k, n = shape
    up = [-(-size // to) * to for size in (m, k, n)]
    return (batch, m if conv else up[0], up[1], up[2])


def matmuls(operations: list[Operation]) -> list[Matmul]:
    """Every product of matrices, largest first."""
    found: dict[Any, Matmul] = {}
    for operation in operations:
        if operation.matmul is None:
            continue
        at = operation.call.at if operation.call is not None else None
        path, line = (at.path, at.line) if at is not None else (None, None)
        key = (operation.op, operation.phase, operation.module, path, line, operation.matmul)
        if key in found:
            found[key].count += 1
        else:
            found[key] = Matmul(
                operation.op,
                operation.phase,
                operation.module,
                path,
                line,
                operation.matmul,
                operation.transposed,
            )
    return sorted(found.values(), key=lambda x: -_work(x.shape) * x.count)


def _work(shape: tuple[int, int, int, int]) -> int:
    batch, m, k, n = shape
    return batch * m * k * n


def time_padding(found: list[Matmul], dtype: torch.dtype) -> None:
    """On a GPU: how long the largest misaligned products take as they are, and padded."""
    odd = [x for x in found if not x.aligned and x.op != "conv"][:MOST_PADDED]
    source = torch.Generator("cuda")  # its own: the user's randomness is not drawn from
    for product in odd:
        product.seconds = _product_seconds(product.shape, product.transposed, dtype, source)
        product.padded_seconds = _product_seconds(product.padded, product.transposed, dtype, source)


def _product_seconds(
    shape: tuple[int, int, int, int],
    transposed: tuple[bool, bool],
    dtype: torch.dtype,
    source: torch.Generator,
) -> float:
    """In the layout that the code has: a Linear's weight is transposed, so its rows are as long as its input."""
    batch, m, k, n = shape
    a, b = (
        _matrix(batch, rows, columns, flipped, dtype, source)
        for rows, columns, flipped in ((m, k, transposed[0]), (k, n, transposed[1]))
    )
    best = float("inf")
    for _ in range(5):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
        torch.matmul(a, b)
        begin.record()
        for _ in range(10):
            torch.matmul(a, b)
        end.record()
        torch.cuda.synchronize()
        best = min(best, begin.elapsed_time(end) / 1e4)
    return best


def _matrix(
    batch: int,
    rows: int,
    columns: int,
    transposed: bool,
    dtype: torch.dtype,
    source: torch.Generator,
) -> Tensor:
    shape = (columns, rows) if transposed else (rows, columns)
    made = torch.rand(batch, *shape, device="cuda", generator=source).to(dtype)
    made = made.transpose(1, 2) if transposed else made
    return made[0] if batch == 1 else made
