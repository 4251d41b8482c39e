# mypy: disable-error-code="untyped-decorator,no-untyped-def,no-untyped-call"
# (Triton is not installed where the types are checked, and a kernel's arguments have no Python types.)
"""The one-pass gradient kernel: every statistic of every gradient in one read of memory.

The same few launches whatever the number, sizes and dtypes of the tensors, and never a word from the host:

    chunks    one program for one chunk of one tensor: sums, largest, zeros and non-finite, read once. The last program
              to finish adds up: norm, clip coefficient, and the one scalar to multiply with
    groups    the adding up where there are several clip groups: one program for each
    scale     the only one that writes gradients: it reads that scalar on the device and returns at once when it is 1
    tensors   one program for one tensor: its chunks added up to its statistics, when somebody asks for them
    wipe      sets gradients to zero where a flag on the device says so, and returns at once where it does not

`tables.py` says where the gradients are, and launches. No float is ever added atomically: ranks that hold the same gradients must get the same bits.
"""

from __future__ import annotations

import triton
import triton.language as tl

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
    # Rare, so it is counted in a second read instead of in every first one
    if top >= _INFINITY_BITS:
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


@triton.jit
def _finish_group(squares, begin, end, offset, stride, device_factor, result, group, n_groups, factor, max_norm, CLIP: tl.constexpr, ON_DEVICE: tl.constexpr, BLOCK: tl.constexpr):  # fmt: skip
    """Norm, clip coefficient, and the one scalar that this group's gradients are multiplied with."""
    lanes = tl.arange(0, BLOCK)
    square = tl.zeros([BLOCK], tl.float64)
    for start in range(begin, end, BLOCK):
        row = start + lanes
        square += tl.load(
            squares + offset + row * stride, mask=row < end, other=0.0, cache_modifier=".cg"
        )
    if ON_DEVICE:
        factor = factor * tl.load(device_factor)
    norm = tl.sqrt(tl.sum(square)).to(tl.float32) * factor
    coefficient = tl.full((), 1.0, tl.float32)
    if CLIP:
        coefficient = max_norm / (norm + 1e-6)
        # A NaN stays a NaN, as in torch
        coefficient = tl.where(coefficient > 1.0, 1.0, coefficient)
    multiplier = coefficient * factor
    tl.store(result + group, norm)
    tl.store(result + n_groups + group, coefficient)
    tl.store(result + 2 * n_groups + group, multiplier)
    tl.store(result + 3 * n_groups + group, 1.0 / multiplier)
    tl.store(result + 4 * n_groups + group, tl.where(tl.abs(norm) < float("inf"), 0.0, 1.0))


@triton.jit(do_not_specialize=["n_chunks", "factor", "max_norm"])
def chunks_kernel(chunks, pointers, partial, n_chunks, counter, device_factor, result, factor, max_norm, FP32: tl.constexpr, BF16: tl.constexpr, FP16: tl.constexpr, TILE: tl.constexpr, FINISH: tl.constexpr, CLIP: tl.constexpr, ON_DEVICE: tl.constexpr):  # fmt: skip
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
    if FINISH:
        # Whoever comes last adds up what all have stored, always in the same order, and leaves the counter at zero.
        tl.debug_barrier()
        if tl.atomic_add(counter, 1, sem="acq_rel") == n_chunks - 1:
            tl.store(counter, 0)
            _finish_group(
                partial,
                0,
                n_chunks,
                n_chunks,
                1,
                device_factor,
                result,
                0,
                1,
                factor,
                max_norm,
                CLIP,
                ON_DEVICE,
                1024,
            )


@triton.jit(do_not_specialize=["n_chunks"])
def tensors_kernel(first_chunk, partial, moments, n_chunks, BLOCK: tl.constexpr):
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
def groups_kernel(ranges, squares, offset, stride, device_factor, result, n_groups, factor, max_norm, CLIP: tl.constexpr, ON_DEVICE: tl.constexpr):  # fmt: skip
    group = tl.program_id(0)
    begin, end = tl.load(ranges + group), tl.load(ranges + group + 1)
    _finish_group(
        squares,
        begin,
        end,
        offset,
        stride,
        device_factor,
        result,
        group,
        n_groups,
        factor,
        max_norm,
        CLIP,
        ON_DEVICE,
        1024,
    )


@triton.jit
def _scale_part(pointer, count, multiplier, TILE: tl.constexpr, REST: tl.constexpr):
    dtype: tl.constexpr = pointer.dtype.element_ty
    done = 0
    if (pointer.to(tl.int64, bitcast=True) % 16 == 0) & (count == TILE):
        at = tl.multiple_of(pointer + tl.arange(0, TILE), 16)
        tl.store(at, (tl.load(at).to(tl.float32) * multiplier).to(dtype))
        done = count
    for start in range(done, count, REST):
        at = pointer + start + tl.arange(0, REST)
        inside = start + tl.arange(0, REST) < count
        tl.store(at, (tl.load(at, mask=inside).to(tl.float32) * multiplier).to(dtype), mask=inside)


@triton.jit(do_not_specialize=["n_chunks", "n_groups"])
def scale_kernel(result, chunks, pointers, n_chunks, n_groups, ONE_GROUP: tl.constexpr, FP32: tl.constexpr, BF16: tl.constexpr, FP16: tl.constexpr, PARTS: tl.constexpr, TILE: tl.constexpr):  # fmt: skip
    multipliers = result + _MULTIPLIERS * n_groups
    multiplier = tl.load(multipliers)
    if ONE_GROUP:
        if multiplier == 1.0:
            return
    # Last read, first scaled: the end of the gradients may still be in the cache.
    index = n_chunks * PARTS - 1 - tl.program_id(0)
    address, first, count, dtype, group = _locate(chunks, pointers, index // PARTS)
    first += index % PARTS * TILE
    count = tl.minimum(count - index % PARTS * TILE, TILE)
    if not ONE_GROUP:
        multiplier = tl.load(multipliers + group)
    if multiplier != 1.0:
        if FP32:
            if dtype == 0:
                _scale_part(
                    address.to(tl.pointer_type(tl.float32)) + first, count, multiplier, TILE, 2048
                )
        if BF16:
            if dtype == 1:
                _scale_part(
                    address.to(tl.pointer_type(tl.bfloat16)) + first, count, multiplier, TILE, 2048
                )
        if FP16:
            if dtype == 2:
                _scale_part(
                    address.to(tl.pointer_type(tl.float16)) + first, count, multiplier, TILE, 2048
                )


@triton.jit
def _wipe_part(pointer, count, TILE: tl.constexpr):
    for start in range(0, count, TILE):
        inside = start + tl.arange(0, TILE) < count
        at = pointer + start + tl.arange(0, TILE)
        tl.store(at, tl.zeros([TILE], pointer.dtype.element_ty), mask=inside)


@triton.jit
def wipe_kernel(flag, chunks, pointers, FP32: tl.constexpr, BF16: tl.constexpr, FP16: tl.constexpr, TILE: tl.constexpr):  # fmt: skip
    if tl.load(flag) == 0.0:
        return
    address, first, count, dtype, _ = _locate(chunks, pointers, tl.program_id(0))
    if FP32:
        if dtype == 0:
            _wipe_part(address.to(tl.pointer_type(tl.float32)) + first, count, TILE)
    if BF16:
        if dtype == 1:
            _wipe_part(address.to(tl.pointer_type(tl.bfloat16)) + first, count, TILE)
    if FP16:
        if dtype == 2:
            _wipe_part(address.to(tl.pointer_type(tl.float16)) + first, count, TILE)
