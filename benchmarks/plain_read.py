"""A kernel that only reads: the floor for anything that reads the gradients once. Used by engine_gpu.py."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

CHUNK, TILE, WARPS = 32768, 2048, 8


@triton.jit
def _read(x, out, CHUNK: tl.constexpr, TILE: tl.constexpr):
    program = tl.program_id(0)
    lanes = tl.arange(0, TILE)
    base = x + program.to(tl.int64) * CHUNK
    total = tl.zeros([TILE], tl.float32)
    for start in range(0, CHUNK, TILE):
        total += tl.load(tl.multiple_of(base + (start + lanes), 16), eviction_policy="evict_first")
    tl.store(out + program, tl.sum(total))


def plain_read(
    flat: Tensor, out: Tensor, chunk: int = CHUNK, tile: int = TILE, warps: int = WARPS
) -> None:
    """Read a flat float32 tensor (a multiple of `chunk` long) once; what is added up is thrown away."""
    _read[(flat.numel() // chunk,)](flat, out, CHUNK=chunk, TILE=tile, num_warps=warps)


def buffers(nbytes: int) -> tuple[Tensor, Tensor]:
    elements = -(-nbytes // 4 // 131072) * 131072  # rounded up to whole chunks of any size tried
    return torch.randn(elements, device="cuda"), torch.empty(elements // 2048, device="cuda")
