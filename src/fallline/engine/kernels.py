# mypy: disable-error-code="misc,no-untyped-def,no-untyped-call"
# (Triton is not installed where the types are checked, and a kernel's arguments have no Python types.)
"""The one-pass gradient kernel: every statistic of every gradient in one read of memory.

Three short launches whatever the number, sizes and dtypes of the tensors, and never a word from the host:

    moments   one program for one chunk of one tensor: sums, largest, zeros and non-finite, read once
    tensors   one program for one tensor: its chunks added up, always in the same order
    groups    one program for one clip group: norm, clip coefficient, and the one scalar to multiply with

`scale` is the only kernel that writes gradients; it reads the scalar from device memory and returns at once
when it is 1. No float is ever added atomically: ranks that hold the same gradients must get the same bits.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence

import torch
import triton
import triton.language as tl
from torch import Tensor

__all__ = ["SUPPORTED", "Table", "table_of"]

SUPPORTED = {torch.float32: 0, torch.bfloat16: 1, torch.float16: 2}

_CHUNK = 32768  # elements that one program reads: 128 KB of float32
_TILE = 2048  # elements in flight in one program: four 16-byte loads in each of 128 threads
_WARPS = 4
_SCALE_PROGRAMS = 132 * 16  # few enough that returning at once costs microseconds

_INFINITY_BITS = tl.constexpr(0x7F800000)
_FIELDS = tl.constexpr(5)


@triton.jit
def _add_tile(x, total, square, largest):
    total += x
    square += x * x
    largest = tl.maximum(largest, tl.abs(x), propagate_nan=tl.PropagateNan.ALL)
    return total, square, largest


@triton.jit
def _moments_of(pointer, count, out, stride, TILE: tl.constexpr):
    """Sum, sum of squares, largest, zeros and non-finite of `count` elements, from one read."""
    lanes = tl.arange(0, TILE)
    total = tl.zeros([TILE], tl.float32)
    square = tl.zeros([TILE], tl.float32)
    largest = tl.zeros([TILE], tl.float32)
    zeros = tl.zeros([TILE], tl.int32)
    whole = count // TILE * TILE

    if pointer.to(tl.int64, bitcast=True) % 16 == 0:
        for start in range(0, whole, TILE):
            at = tl.multiple_of(pointer + (start + lanes), 16)  # what makes the loads 16 bytes wide
            x = tl.load(at, eviction_policy="evict_first").to(tl.float32)
            total, square, largest = _add_tile(x, total, square, largest)
            zeros += (x == 0).to(tl.int32)
    else:
        for start in range(0, whole, TILE):
            x = tl.load(pointer + start + lanes).to(tl.float32)
            total, square, largest = _add_tile(x, total, square, largest)
            zeros += (x == 0).to(tl.int32)

    if whole < count:
        inside = whole + lanes < count
        x = tl.load(pointer + whole + lanes, mask=inside, other=0.0).to(tl.float32)
        total, square, largest = _add_tile(x, total, square, largest)
        zeros += ((x == 0) & inside).to(tl.int32)

    # As integers, NaN is larger than infinity is larger than any number: nothing is lost in the maximum.
    top = tl.max(largest.to(tl.int32, bitcast=True))
    nonfinite = tl.full((), 0, tl.int32)
    if (
        top >= _INFINITY_BITS
    ):  # rare, so it is counted in a second read instead of in every first one
        for start in range(0, count, TILE):
            x = tl.load(pointer + start + lanes, mask=start + lanes < count, other=0.0).to(
                tl.float32
            )
            bits = tl.abs(x).to(tl.int32, bitcast=True)
            nonfinite += tl.sum((bits >= _INFINITY_BITS).to(tl.int32))

    tl.store(out, tl.sum(total.to(tl.float64)))
    tl.store(out + stride, tl.sum(square.to(tl.float64)))
    tl.store(out + 2 * stride, top.to(tl.float64))
    tl.store(out + 3 * stride, tl.sum(zeros).to(tl.float64))
    tl.store(out + 4 * stride, nonfinite.to(tl.float64))


@triton.jit
def _locate(chunks, pointers, numels, CHUNK: tl.constexpr, chunk):
    """Which tensor this chunk belongs to, where it begins, and how many elements it has."""
    tensor = tl.load(chunks + 2 * chunk)
    first = tl.load(chunks + 2 * chunk + 1).to(tl.int64) * CHUNK
    count = tl.minimum(tl.load(numels + tensor) - first, CHUNK).to(tl.int32)
    return tensor, tl.load(pointers + tensor), first, count


@triton.jit
def _moments(chunks, pointers, numels, dtypes, partial, n_chunks, FP32: tl.constexpr, BF16: tl.constexpr, FP16: tl.constexpr, CHUNK: tl.constexpr, TILE: tl.constexpr):  # fmt: skip
    chunk = tl.program_id(0)
    tensor, address, first, count = _locate(chunks, pointers, numels, CHUNK, chunk)
    dtype = tl.load(dtypes + tensor)
    out = partial + chunk
    # Only the dtypes that are there are compiled in.
    if FP32:
        if dtype == 0:
            _moments_of(address.to(tl.pointer_type(tl.float32)) + first, count, out, n_chunks, TILE)
    if BF16:
        if dtype == 1:
            _moments_of(
                address.to(tl.pointer_type(tl.bfloat16)) + first, count, out, n_chunks, TILE
            )
    if FP16:
        if dtype == 2:
            _moments_of(address.to(tl.pointer_type(tl.float16)) + first, count, out, n_chunks, TILE)


@triton.jit
def _tensors(first_chunk, partial, moments, n_chunks, BLOCK: tl.constexpr):
    tensor = tl.program_id(0)
    begin = tl.load(first_chunk + tensor)
    end = tl.load(first_chunk + tensor + 1)
    lanes = tl.arange(0, BLOCK)
    total = tl.zeros([BLOCK], tl.float64)
    square = tl.zeros([BLOCK], tl.float64)
    top = tl.zeros([BLOCK], tl.float64)
    zeros = tl.zeros([BLOCK], tl.float64)
    nonfinite = tl.zeros([BLOCK], tl.float64)
    for start in range(begin, end, BLOCK):
        chunk = start + lanes
        inside = chunk < end
        total += tl.load(partial + chunk, mask=inside, other=0.0)
        square += tl.load(partial + n_chunks + chunk, mask=inside, other=0.0)
        top = tl.maximum(top, tl.load(partial + 2 * n_chunks + chunk, mask=inside, other=0.0))
        zeros += tl.load(partial + 3 * n_chunks + chunk, mask=inside, other=0.0)
        nonfinite += tl.load(partial + 4 * n_chunks + chunk, mask=inside, other=0.0)
    out = moments + tensor * _FIELDS
    tl.store(out, tl.sum(total))
    tl.store(out + 1, tl.sum(square))
    tl.store(out + 2, tl.max(top).to(tl.int32).to(tl.float32, bitcast=True).to(tl.float64))
    tl.store(out + 3, tl.sum(zeros))
    tl.store(out + 4, tl.sum(nonfinite))


@triton.jit
def _groups(first_tensor, moments, result, n_groups, factor, device_factor, max_norm, CLIP: tl.constexpr, BLOCK: tl.constexpr):  # fmt: skip
    group = tl.program_id(0)
    begin = tl.load(first_tensor + group)
    end = tl.load(first_tensor + group + 1)
    lanes = tl.arange(0, BLOCK)
    square = tl.zeros([BLOCK], tl.float64)
    for start in range(begin, end, BLOCK):
        tensor = start + lanes
        square += tl.load(moments + tensor * _FIELDS + 1, mask=tensor < end, other=0.0)
    if device_factor is not None:
        factor = factor * tl.load(device_factor)
    norm = tl.sqrt(tl.sum(square)).to(tl.float32) * factor
    coefficient = tl.full((), 1.0, tl.float32)
    if CLIP:
        coefficient = max_norm / (norm + 1e-6)
        coefficient = tl.where(
            coefficient > 1.0, 1.0, coefficient
        )  # a NaN stays a NaN, as in torch
    multiplier = coefficient * factor
    finite = tl.abs(norm) < float("inf")
    tl.store(result + group, norm)
    tl.store(result + n_groups + group, coefficient)
    tl.store(result + 2 * n_groups + group, multiplier)
    tl.store(result + 3 * n_groups + group, 1.0 / multiplier)
    tl.store(result + 4 * n_groups + group, tl.where(finite, 0.0, 1.0))


@triton.jit
def _scale_chunk(pointer, count, multiplier, TILE: tl.constexpr):
    lanes = tl.arange(0, TILE)
    whole = count // TILE * TILE
    if pointer.to(tl.int64, bitcast=True) % 16 == 0:
        for start in range(0, whole, TILE):
            at = tl.multiple_of(pointer + (start + lanes), 16)
            x = tl.load(at, eviction_policy="evict_first").to(tl.float32) * multiplier
            tl.store(at, x.to(pointer.dtype.element_ty), eviction_policy="evict_first")
    else:
        for start in range(0, whole, TILE):
            at = pointer + start + lanes
            tl.store(at, (tl.load(at).to(tl.float32) * multiplier).to(pointer.dtype.element_ty))
    if whole < count:
        at = pointer + whole + lanes
        inside = whole + lanes < count
        x = tl.load(at, mask=inside).to(tl.float32) * multiplier
        tl.store(at, x.to(pointer.dtype.element_ty), mask=inside)


@triton.jit
def _scale(multipliers, chunks, pointers, numels, dtypes, group_of, n_chunks, ONE_GROUP: tl.constexpr, FP32: tl.constexpr, BF16: tl.constexpr, FP16: tl.constexpr, CHUNK: tl.constexpr, TILE: tl.constexpr):  # fmt: skip
    multiplier = tl.load(multipliers)
    if ONE_GROUP:
        if multiplier == 1.0:
            return
    for step in range(tl.program_id(0), n_chunks, tl.num_programs(0)):
        # Last read, first scaled: the end of the gradients may still be in the cache.
        tensor, address, first, count = _locate(
            chunks, pointers, numels, CHUNK, n_chunks - 1 - step
        )
        if not ONE_GROUP:
            multiplier = tl.load(multipliers + tl.load(group_of + tensor))
        dtype = tl.load(dtypes + tensor)
        if multiplier != 1.0:
            if FP32:
                if dtype == 0:
                    _scale_chunk(
                        address.to(tl.pointer_type(tl.float32)) + first, count, multiplier, TILE
                    )
            if BF16:
                if dtype == 1:
                    _scale_chunk(
                        address.to(tl.pointer_type(tl.bfloat16)) + first, count, multiplier, TILE
                    )
            if FP16:
                if dtype == 2:
                    _scale_chunk(
                        address.to(tl.pointer_type(tl.float16)) + first, count, multiplier, TILE
                    )


class Layout:
    """What depends on sizes, dtypes and groups alone, on the device: which chunk belongs to which tensor."""

    def __init__(
        self,
        numels: Sequence[int],
        dtypes: Sequence[torch.dtype],
        groups: Sequence[int],
        device: torch.device,
    ) -> None:
        if list(groups) != sorted(groups):
            raise AssertionError("tensors of one group must follow each other")
        sizes = torch.tensor(numels)
        counts = (sizes + (_CHUNK - 1)) // _CHUNK
        first_chunk = torch.cat([torch.zeros(1, dtype=torch.int64), counts.cumsum(0)])
        tensor = torch.repeat_interleave(torch.arange(len(numels)), counts)
        self.n_tensors = len(numels)
        self.n_chunks = int(first_chunk[-1])
        self.n_groups = groups[-1] + 1
        codes = [SUPPORTED[d] for d in dtypes]
        self.compiled_for = {"FP32": 0 in codes, "BF16": 1 in codes, "FP16": 2 in codes}
        chunks = torch.stack([tensor, torch.arange(self.n_chunks) - first_chunk[tensor]], dim=1)
        first_tensor = torch.searchsorted(torch.tensor(groups), torch.arange(self.n_groups + 1))
        self.chunks = _upload(chunks.to(torch.int32), device)
        self.numels = _upload(sizes, device)
        self.dtypes = _upload(torch.tensor(codes, dtype=torch.int32), device)
        self.groups = _upload(torch.tensor(groups, dtype=torch.int32), device)
        self.first_chunk = _upload(first_chunk.to(torch.int32), device)
        self.first_tensor = _upload(first_tensor.to(torch.int32), device)


class Table:
    """The gradients of one moment: a layout, and where each of them lies now."""

    def __init__(self, layout: Layout, pointers: Sequence[int], device: torch.device) -> None:
        self.layout = layout
        self.device = device
        self.pointers = _upload(torch.tensor(pointers), device)

    def moments(self) -> Tensor:
        """[tensors, 5] in float64: sum, sum of squares, largest, zeros, non-finite."""
        layout = self.layout
        partial = torch.empty(5 * layout.n_chunks, dtype=torch.float64, device=self.device)
        moments = torch.empty(layout.n_tensors, 5, dtype=torch.float64, device=self.device)
        _moments[(layout.n_chunks,)](
            layout.chunks, self.pointers, layout.numels, layout.dtypes, partial, layout.n_chunks,
            **layout.compiled_for, CHUNK=_CHUNK, TILE=_TILE, num_warps=_WARPS,
        )  # fmt: skip
        _tensors[(layout.n_tensors,)](
            layout.first_chunk, partial, moments, layout.n_chunks, BLOCK=512, num_warps=4
        )
        return moments

    def combine(
        self, moments: Tensor, factor: float, device_factor: Tensor | None, max_norm: float | None
    ) -> Tensor:
        """[5, groups] in float32: norm, clip coefficient, multiplier, its inverse, 1 where not finite."""
        layout = self.layout
        result = torch.empty(5, layout.n_groups, dtype=torch.float32, device=self.device)
        _groups[(layout.n_groups,)](
            layout.first_tensor, moments, result, layout.n_groups, float(factor), device_factor, float(max_norm or 0.0),
            CLIP=max_norm is not None, BLOCK=256, num_warps=4,
        )  # fmt: skip
        return result

    def scale(self, multipliers: Tensor) -> None:
        """Multiply each gradient by its group's multiplier, or return at once on the device when it is 1."""
        layout = self.layout
        _scale[(min(layout.n_chunks, _SCALE_PROGRAMS),)](
            multipliers, layout.chunks, self.pointers, layout.numels, layout.dtypes, layout.groups, layout.n_chunks,
            ONE_GROUP=layout.n_groups == 1, **layout.compiled_for, CHUNK=_CHUNK, TILE=_TILE, num_warps=_WARPS,
        )  # fmt: skip


def _upload(host: Tensor, device: torch.device) -> Tensor:
    # Pinned, so that the copy neither waits for the device nor is refused inside a graph capture.
    if device.type != "cuda":
        return host
    pinned = host.pin_memory()
    there = pinned.to(device, non_blocking=True)
    if torch.cuda.is_current_stream_capturing():
        _captured.append(pinned)  # every replay of the graph copies from it again
    return there


_layouts: OrderedDict[object, Layout] = OrderedDict()
_tables: OrderedDict[object, Table] = OrderedDict()
_captured: list[object] = []
_KEEP = 16


def table_of(grads: Sequence[Tensor], groups: tuple[int, ...]) -> Table | None:
    """The table for these gradients, from the cache unless they moved; None where the kernel cannot read them."""
    try:
        pointers = tuple(map(Tensor.data_ptr, grads))
    except RuntimeError:  # sparse, or another tensor without memory of its own
        return None
    if not all(map(Tensor.is_contiguous, grads)) and not all(map(_dense, grads)):
        return None
    numels = tuple(map(Tensor.numel, grads))
    dtypes = tuple([g.dtype for g in grads])
    device = grads[0].device
    stream = torch.cuda.current_stream(device).cuda_stream if device.type == "cuda" else 0
    sizes = (numels, dtypes, groups, stream)
    key = (pointers, sizes)
    table = _tables.get(key)
    if table is None:
        if (
            any(d not in SUPPORTED for d in dtypes)
            or any(g.device != device for g in grads)
            or 0 in numels
        ):
            return None
        layout = _layouts.get((sizes, device))
        if layout is None:
            layout = _remember(_layouts, (sizes, device), Layout(numels, dtypes, groups, device))
        table = _remember(_tables, key, Table(layout, pointers, device))
    if device.type == "cuda" and torch.cuda.is_current_stream_capturing():
        _captured.append(table)  # a graph reads these pointers for as long as it lives
    return table


def _dense(tensor: Tensor) -> bool:
    """Every element of the memory it spans belongs to it once: the order does not matter to us."""
    return tensor.is_contiguous() or (
        tensor.dim() == 4 and tensor.is_contiguous(memory_format=torch.channels_last)
    )


def _remember(cache: OrderedDict[object, object], key: object, value: object):
    cache[key] = value
    if len(cache) > _KEEP:
        cache.popitem(last=False)
    return value
