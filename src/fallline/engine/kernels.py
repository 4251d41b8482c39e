# mypy: disable-error-code="untyped-decorator,no-untyped-def,no-untyped-call"
# (Triton is not installed where the types are checked, and a kernel's arguments have no Python types.)
"""The one-pass gradient kernel: every statistic of every gradient in one read of memory.

The same few launches whatever the number, sizes and dtypes of the tensors, and never a word from the host:

    chunks    one program for one chunk of one tensor: sums, largest, zeros and non-finite, read once
    groups    one program for one clip group: norm, clip coefficient, and the one scalar to multiply with
    scale     the only one that writes gradients: it reads that scalar on the device and returns at once when it is 1
    tensors   one program for one tensor: its chunks added up to its statistics, when somebody asks for them

No float is ever added atomically: ranks that hold the same gradients must get the same bits.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

__all__ = ["Table", "table_of"]

_CODES = {torch.float32: 0, torch.bfloat16: 1, torch.float16: 2}

_CHUNK = 65536  # elements that one program reads: 256 KB of float32
_TILE, _WARPS = (
    2048,
    8,
)  # elements in flight in one program: two 16-byte loads in each of 256 threads
_SCALE_CHUNK, _SCALE_TILE, _SCALE_WARPS = 8192, 2048, 8
_SCALE_PROGRAMS = 132 * 8  # few enough that returning at once costs microseconds

_LAUNCHER_TAKES_CONSTANTS = tuple(map(int, triton.__version__.split(".")[:2])) >= (3, 4)

_INFINITY_BITS = tl.constexpr(0x7F800000)
_FIELDS = tl.constexpr(5)  # of a row of moments: sum, sum of squares, largest, zeros, non-finite
_MULTIPLIERS = tl.constexpr(2)  # the row of the result that `scale` multiplies with


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

    # Added up in float32 as a tree here, and in float64 from chunk to chunk: converting every lane would cost 10 %.
    tl.store(out, tl.sum(total).to(tl.float64))
    tl.store(out + stride, tl.sum(square).to(tl.float64))
    tl.store(out + 2 * stride, top.to(tl.float64))
    tl.store(out + 3 * stride, tl.sum(zeros).to(tl.float64))
    tl.store(out + 4 * stride, nonfinite.to(tl.float64))


@triton.jit
def _locate(chunks, pointers, chunk):
    """A chunk's memory, first element, number of elements, dtype and clip group."""
    row = chunks + 4 * chunk
    address = tl.load(pointers + tl.load(row))
    kind = tl.load(row + 3).to(tl.int32)
    return address, tl.load(row + 1), tl.load(row + 2).to(tl.int32), kind & 3, kind >> 2


@triton.jit(do_not_specialize=["n_chunks"])
def _chunks(chunks, pointers, partial, n_chunks, FP32: tl.constexpr, BF16: tl.constexpr, FP16: tl.constexpr, TILE: tl.constexpr):  # fmt: skip
    chunk = tl.program_id(0)
    address, first, count, dtype, _ = _locate(chunks, pointers, chunk)
    out = partial + chunk
    if FP32:  # only the dtypes that are there are compiled in
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


@triton.jit(do_not_specialize=["n_chunks"])
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


@triton.jit(do_not_specialize=["offset", "stride", "n_groups", "factor", "max_norm"])
def _groups(ranges, squares, offset, stride, device_factor, result, n_groups, factor, max_norm, CLIP: tl.constexpr, ON_DEVICE: tl.constexpr, BLOCK: tl.constexpr):  # fmt: skip
    group = tl.program_id(0)
    begin = tl.load(ranges + group)
    end = tl.load(ranges + group + 1)
    lanes = tl.arange(0, BLOCK)
    square = tl.zeros([BLOCK], tl.float64)
    for start in range(begin, end, BLOCK):
        row = start + lanes
        square += tl.load(squares + offset + row * stride, mask=row < end, other=0.0)
    if ON_DEVICE:
        factor = factor * tl.load(device_factor)
    norm = tl.sqrt(tl.sum(square)).to(tl.float32) * factor
    coefficient = tl.full((), 1.0, tl.float32)
    if CLIP:
        coefficient = max_norm / (norm + 1e-6)
        coefficient = tl.where(
            coefficient > 1.0, 1.0, coefficient
        )  # a NaN stays a NaN, as in torch
    multiplier = coefficient * factor
    tl.store(result + group, norm)
    tl.store(result + n_groups + group, coefficient)
    tl.store(result + 2 * n_groups + group, multiplier)
    tl.store(result + 3 * n_groups + group, 1.0 / multiplier)
    tl.store(result + 4 * n_groups + group, tl.where(tl.abs(norm) < float("inf"), 0.0, 1.0))


@triton.jit
def _scale_part(pointer, count, multiplier, TILE: tl.constexpr):
    lanes = tl.arange(0, TILE)
    whole = count // TILE * TILE
    if pointer.to(tl.int64, bitcast=True) % 16 == 0:
        for start in range(0, whole, TILE):
            at = tl.multiple_of(pointer + (start + lanes), 16)
            x = tl.load(at).to(tl.float32) * multiplier
            tl.store(at, x.to(pointer.dtype.element_ty))
    else:
        for start in range(0, whole, TILE):
            at = pointer + start + lanes
            tl.store(at, (tl.load(at).to(tl.float32) * multiplier).to(pointer.dtype.element_ty))
    if whole < count:
        at = pointer + whole + lanes
        inside = whole + lanes < count
        x = tl.load(at, mask=inside).to(tl.float32) * multiplier
        tl.store(at, x.to(pointer.dtype.element_ty), mask=inside)


@triton.jit(do_not_specialize=["n_chunks", "n_groups"])
def _scale(result, chunks, pointers, n_chunks, n_groups, ONE_GROUP: tl.constexpr, FP32: tl.constexpr, BF16: tl.constexpr, FP16: tl.constexpr, PARTS: tl.constexpr, PART: tl.constexpr, TILE: tl.constexpr):  # fmt: skip
    multipliers = result + _MULTIPLIERS * n_groups
    multiplier = tl.load(multipliers)
    if ONE_GROUP:
        if multiplier == 1.0:
            return
    # Parts of chunks that lie next to each other are written at the same time by different programs: memory likes that.
    # Last read, first scaled: the end of the gradients may still be in the cache.
    for step in range(tl.program_id(0), n_chunks * PARTS, tl.num_programs(0)):
        index = n_chunks * PARTS - 1 - step
        address, first, count, dtype, group = _locate(chunks, pointers, index // PARTS)
        first += index % PARTS * PART
        count = tl.minimum(count - index % PARTS * PART, PART)
        if not ONE_GROUP:
            multiplier = tl.load(multipliers + group)
        if (multiplier != 1.0) & (count > 0):
            if FP32:
                if dtype == 0:
                    _scale_part(
                        address.to(tl.pointer_type(tl.float32)) + first, count, multiplier, TILE
                    )
            if BF16:
                if dtype == 1:
                    _scale_part(
                        address.to(tl.pointer_type(tl.bfloat16)) + first, count, multiplier, TILE
                    )
            if FP16:
                if dtype == 2:
                    _scale_part(
                        address.to(tl.pointer_type(tl.float16)) + first, count, multiplier, TILE
                    )


class Layout:
    """What depends on sizes, dtypes and groups alone, on the device: which chunk belongs to which tensor."""

    def __init__(
        self,
        numels: list[int],
        dtypes: list[torch.dtype],
        groups: tuple[int, ...],
        device: torch.device,
    ) -> None:
        if list(groups) != sorted(groups):
            raise AssertionError("tensors of one group must follow each other")
        self.numels, self.dtypes, self.groups, self.device = numels, dtypes, groups, device
        sizes, codes = torch.tensor(numels), torch.tensor([_CODES[d] for d in dtypes])
        counts = (sizes + (_CHUNK - 1)) // _CHUNK
        first_chunk = torch.cat([torch.zeros(1, dtype=torch.int64), counts.cumsum(0)])
        self.n_tensors = len(numels)
        self.n_chunks = int(first_chunk[-1])
        self.n_groups = groups[-1] + 1
        tensor = torch.repeat_interleave(torch.arange(self.n_tensors), counts)
        first = (torch.arange(self.n_chunks) - first_chunk[tensor]) * _CHUNK
        kind = (codes + 4 * torch.tensor(groups))[tensor]
        chunks = torch.stack(
            [tensor, first, (sizes[tensor] - first).clamp(max=_CHUNK), kind], dim=1
        )
        first_tensor = torch.searchsorted(torch.tensor(groups), torch.arange(self.n_groups + 1))
        self.chunks = _upload(chunks, device)
        self.first_chunk = _upload(first_chunk.to(torch.int32), device)
        self.chunk_ranges = _upload(first_chunk[first_tensor].to(torch.int32), device)
        self.tensor_ranges = _upload(first_tensor.to(torch.int32), device)
        present = set(codes.tolist())
        self.present = {"FP32": 0 in present, "BF16": 1 in present, "FP16": 2 in present}
        self.dtype = dtypes[0]  # what torch.stack would make of all of them
        for dtype in set(dtypes):
            self.dtype = torch.promote_types(self.dtype, dtype)
        self._runners: dict[object, Any] = {}

    def launch(
        self,
        kernel: Any,
        programs: int,
        args: tuple[Any, ...],
        warps: int,
        *variant: Any,
        **constants: Any,
    ) -> None:
        """Launch the compiled kernel itself: Triton's usual path costs more host time than clipping a small model.

        `variant` is what the constants depend on within one layout.
        """
        if not _LAUNCHER_TAKES_CONSTANTS:
            kernel[(programs,)](*args, num_warps=warps, **constants)
            return
        runner = self._runners.get((kernel, variant))
        if runner is None:
            compiled = kernel.warmup(*args, grid=(1,), num_warps=warps, **constants)
            launch, values = compiled[(programs, 1, 1)], tuple(constants.values())
            runner = self._runners[(kernel, variant)] = lambda *args: launch(*args, *values)
        runner(*args)


class Table:
    """The gradients of one moment: a layout, and where each of them lies now."""

    def __init__(self, layout: Layout, pointers: list[int]) -> None:
        self.layout = layout
        self.addresses = pointers
        self.pointers = _upload(torch.tensor(pointers), layout.device)

    def read(self) -> Tensor:
        """Read the gradients once. What it returns is for `combine` and `moments`."""
        at = self.layout
        partial = torch.empty(5 * at.n_chunks, dtype=torch.float64, device=at.device)
        at.launch(
            _chunks,
            at.n_chunks,
            (at.chunks, self.pointers, partial, at.n_chunks),
            _WARPS,
            **at.present,
            TILE=_TILE,
        )
        return partial

    def moments(self, partial: Tensor) -> Tensor:
        """[tensors, 5] in float64: sum, sum of squares, largest, zeros, non-finite."""
        at = self.layout
        moments = torch.empty((at.n_tensors, 5), dtype=torch.float64, device=at.device)
        at.launch(
            _tensors, at.n_tensors, (at.first_chunk, partial, moments, at.n_chunks), 4, BLOCK=512
        )
        return moments

    def combine(
        self, read: Tensor, factor: float, device_factor: Tensor | None, max_norm: float | None
    ) -> Tensor:
        """[5, groups] in float32: norm, clip coefficient, multiplier, its inverse, 1 where not finite.

        From what `read` returned, or from moments (which other ranks may have added to).
        """
        at = self.layout
        ranges, offset, stride = (
            (at.chunk_ranges, at.n_chunks, 1) if read.dim() == 1 else (at.tensor_ranges, 1, 5)
        )
        result = torch.empty((5, at.n_groups), dtype=torch.float32, device=at.device)
        clip, on_device = max_norm is not None, device_factor is not None
        args = (
            ranges,
            read,
            offset,
            stride,
            device_factor if on_device else result,
            result,
            at.n_groups,
            factor,
            max_norm if clip else 0.0,
        )
        at.launch(
            _groups,
            at.n_groups,
            args,
            16,
            clip,
            on_device,
            CLIP=clip,
            ON_DEVICE=on_device,
            BLOCK=2048,
        )
        return result

    def scale(self, result: Tensor) -> None:
        """Multiply each gradient by its group's multiplier, or return at once on the device when it is 1."""
        at = self.layout
        parts = _CHUNK // _SCALE_CHUNK
        at.launch(
            _scale, min(at.n_chunks * parts, _SCALE_PROGRAMS), (result, at.chunks, self.pointers, at.n_chunks, at.n_groups), _SCALE_WARPS,
            ONE_GROUP=at.n_groups == 1, **at.present, PARTS=parts, PART=_SCALE_CHUNK, TILE=_SCALE_TILE,
        )  # fmt: skip


def _upload(host: Tensor, device: torch.device) -> Tensor:
    # Pinned, so that the copy neither waits for the device nor is refused inside a graph capture.
    pinned = host.pin_memory()
    there = pinned.to(device, non_blocking=True)
    if torch.cuda.is_current_stream_capturing():
        _captured.append(pinned)  # every replay of the graph copies from it again
    return there


_tables: OrderedDict[object, Table] = OrderedDict()
_captured: list[object] = []
_KEEP = 16


def table_of(grads: Sequence[Tensor], groups: tuple[int, ...]) -> Table | None:
    """The table for these gradients, from the cache unless they moved; None where the kernel cannot read them."""
    device = grads[0].device
    if device.index != torch.cuda.current_device():
        return None  # Triton launches on the current device
    try:
        pointers = list(map(Tensor.data_ptr, grads))
    except RuntimeError:  # sparse, or another tensor without memory of its own
        return None
    if not all(map(Tensor.is_contiguous, grads)) and not all(map(_dense, grads)):
        return None
    numels = list(map(Tensor.numel, grads))
    dtypes = [g.dtype for g in grads]
    key = (
        pointers[0],
        len(pointers),
        triton.runtime.driver.active.get_current_stream(device.index),
    )
    table = _tables.get(key)
    layout = None if table is None else table.layout
    if (
        layout is None
        or layout.numels != numels
        or layout.dtypes != dtypes
        or layout.groups != groups
    ):
        if (
            any(d not in _CODES for d in dtypes)
            or any(g.device != device for g in grads)
            or 0 in numels
        ):
            return None
        known = (t.layout for k, t in _tables.items() if k[1:] == key[1:])  # type: ignore[index]
        same = (
            at
            for at in known
            if (at.numels, at.dtypes, at.groups, at.device) == (numels, dtypes, groups, device)
        )
        layout, table = next(same, None) or Layout(numels, dtypes, groups, device), None
    if table is None or table.addresses != pointers:
        table = Table(layout, pointers)
        _tables[key] = table
        if len(_tables) > _KEEP:
            _tables.popitem(last=False)
    if torch.cuda.is_current_stream_capturing():
        _captured.append(table)  # a graph reads these pointers for as long as it lives
    return table


def _dense(tensor: Tensor) -> bool:
    """Every element of the memory it spans belongs to it once: the order does not matter to us."""
    return tensor.is_contiguous() or (
        tensor.dim() == 4 and tensor.is_contiguous(memory_format=torch.channels_last)
    )
