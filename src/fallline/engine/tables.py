"""Where the gradients are: tables of pointers on the device, cached, and rebuilt when gradients move."""

from __future__ import annotations

import weakref
from collections import OrderedDict
from collections.abc import Sequence
from operator import attrgetter
from typing import Any, ClassVar

import torch
import triton
from torch import Tensor

from fallline.engine.kernels import (
    chunks_kernel,
    groups_kernel,
    scale_kernel,
    tensors_kernel,
    wipe_kernel,
)

__all__ = ["Table", "recall", "remember", "table_of"]

_CODES = {torch.float32: 0, torch.bfloat16: 1, torch.float16: 2}

# Measured on an H200 (benchmarks/engine_gpu.py --sweep): elements of one program, elements it has in flight, its warps.
_CHUNK, _TILE, _WARPS = 65536, 1024, 8
_SCALE_TILE, _SCALE_WARPS = 32768, 16  # few programs, so that returning at once is cheap

_LAUNCHER_TAKES_CONSTANTS = tuple(map(int, triton.__version__.split(".")[:2])) >= (3, 4)


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
        # on the CPU, whatever device a script has made torch's default
        sizes, codes = _tensor(numels), _tensor([_CODES[d] for d in dtypes])
        counts = (sizes + (_CHUNK - 1)) // _CHUNK
        first_chunk = torch.cat([_tensor([0]), counts.cumsum(0)])
        self.n_tensors = len(numels)
        self.n_chunks = int(first_chunk[-1])
        self.n_groups = groups[-1] + 1
        tensor = torch.repeat_interleave(_tensor(range(self.n_tensors)), counts)
        first = (_tensor(range(self.n_chunks)) - first_chunk[tensor]) * _CHUNK
        kind = (codes + 4 * _tensor(groups))[tensor]
        chunks = torch.stack(
            [tensor, first, (sizes[tensor] - first).clamp(max=_CHUNK), kind], dim=1
        )
        first_tensor = torch.searchsorted(_tensor(groups), _tensor(range(self.n_groups + 1)))
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
        key = (id(kernel), variant)
        runner = self._runners.get(key)
        if runner is None:
            compiled = kernel.warmup(*args, grid=(1,), num_warps=warps, **constants)
            launch, values = compiled[(programs, 1, 1)], tuple(constants.values())
            runner = self._runners[key] = lambda *args: launch(*args, *values)
        runner(*args)


class Table:
    """The gradients of one moment: a layout, and where each of them lies now."""

    captured: ClassVar[list[object]] = []  # what a CUDA graph reads for as long as it lives

    def __init__(self, layout: Layout, pointers: list[int], stream: int) -> None:
        self.layout = layout
        self.stream = stream
        self.addresses = pointers
        self.pointers = _upload(_tensor(pointers), layout.device)
        self.counter = _upload(_tensor([0]).to(torch.int32), layout.device)

    def read(self) -> Tensor:
        """Read the gradients once, for `moments`."""
        at = self.layout
        partial = torch.empty(5 * at.n_chunks, dtype=torch.float64, device=at.device)
        args = (
            at.chunks,
            self.pointers,
            partial,
            at.n_chunks,
            self.counter,
            partial,
            partial,
            0.0,
            0.0,
        )
        at.launch(
            chunks_kernel,
            at.n_chunks,
            args,
            _WARPS,
            **at.present,
            TILE=_TILE,
            FINISH=False,
            CLIP=False,
            ON_DEVICE=False,
        )
        return partial

    def moments(self, partial: Tensor) -> Tensor:
        """[tensors, 5] in float64: sum, sum of squares, largest, zeros, non-finite."""
        at = self.layout
        moments = torch.empty((at.n_tensors, 5), dtype=torch.float64, device=at.device)
        at.launch(
            tensors_kernel,
            at.n_tensors,
            (at.first_chunk, partial, moments, at.n_chunks),
            4,
            BLOCK=512,
        )
        return moments

    def nonfinite(self, partial: Tensor) -> Tensor:
        """1 where any value is NaN or infinite, else 0, in float32 on the device; from what `read` or `measure` returned."""
        return partial[4 * self.layout.n_chunks :].any().float()

    def wipe(self, flag: Tensor) -> None:
        """Set every gradient to zero, or return at once on the device where the flag is 0."""
        at = self.layout
        args = (flag, at.chunks, self.pointers)
        at.launch(wipe_kernel, at.n_chunks, args, _WARPS, **at.present, TILE=4096)

    def measure(
        self, factor: float, device_factor: Tensor | None, max_norm: float | None
    ) -> tuple[Tensor, Tensor]:
        """Read the gradients once. Returns what `moments` needs, and what `combine` would say."""
        at = self.layout
        if at.n_groups > 1:
            partial = self.read()
            return partial, self.combine(partial, factor, device_factor, max_norm)
        partial = torch.empty(5 * at.n_chunks, dtype=torch.float64, device=at.device)
        result = torch.empty((5, 1), dtype=torch.float32, device=at.device)
        clip, on_device = max_norm is not None, device_factor is not None
        where = device_factor if on_device else result
        args = (
            at.chunks,
            self.pointers,
            partial,
            at.n_chunks,
            self.counter,
            where,
            result,
            factor,
            max_norm if clip else 0.0,
        )
        at.launch(
            chunks_kernel,
            at.n_chunks,
            args,
            _WARPS,
            clip,
            on_device,
            **at.present,
            TILE=_TILE,
            FINISH=True,
            CLIP=clip,
            ON_DEVICE=on_device,
        )
        return partial, result

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
        where = device_factor if on_device else result
        args = (
            ranges,
            read,
            offset,
            stride,
            where,
            result,
            at.n_groups,
            factor,
            max_norm if clip else 0.0,
        )
        at.launch(
            groups_kernel, at.n_groups, args, 4, clip, on_device, CLIP=clip, ON_DEVICE=on_device
        )
        return result

    def scale(self, result: Tensor) -> None:
        """Multiply each gradient by its group's multiplier, or return at once on the device when it is 1."""
        at = self.layout
        parts = _CHUNK // _SCALE_TILE
        args = (result, at.chunks, self.pointers, at.n_chunks, at.n_groups)
        at.launch(
            scale_kernel,
            at.n_chunks * parts,
            args,
            _SCALE_WARPS,
            ONE_GROUP=at.n_groups == 1,
            **at.present,
            PARTS=parts,
            TILE=_SCALE_TILE,
        )


def _tensor(numbers: Sequence[int]) -> Tensor:
    return torch.tensor(numbers, dtype=torch.int64, device="cpu")


def _upload(host: Tensor, device: torch.device) -> Tensor:
    # Pinned, so that the copy neither waits for the device nor is refused inside a graph capture.
    pinned = host.pin_memory()
    there = pinned.to(device, non_blocking=True)
    if torch.cuda.is_current_stream_capturing():
        Table.captured.append(pinned)  # every replay of the graph copies from it again
    return there


_tables: OrderedDict[tuple[int, int, int], Table] = OrderedDict()
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
    stream = _stream(device)
    key = (pointers[0], len(pointers), stream)
    table = _tables.get(key)
    layout = None if table is None else table.layout
    if layout is None or (layout.numels, layout.dtypes, layout.groups) != (numels, dtypes, groups):
        if (
            any(d not in _CODES for d in dtypes)
            or any(g.device != device for g in grads)
            or 0 in numels
        ):
            return None
        wanted = (numels, dtypes, groups, device)
        known = (t.layout for t in _tables.values() if t.stream == stream)
        layout = next(
            (at for at in known if (at.numels, at.dtypes, at.groups, at.device) == wanted), None
        )
        layout, table = layout or Layout(*wanted), None
    if table is None or table.addresses != pointers:
        table = _tables[key] = Table(layout, pointers, stream)
        if len(_tables) > _KEEP:
            _tables.popitem(last=False)
    return _used(table)


def _used(table: Table) -> Table:
    if torch.cuda.is_current_stream_capturing():
        Table.captured.append(table)  # a graph reads these pointers for as long as it lives
    return table


def _stream(device: torch.device) -> int:
    stream: int = triton.runtime.driver.active.get_current_stream(device.index)
    return stream


class _Known:
    """A list of parameters that was clipped before: what need not be looked at again."""

    __slots__ = ("nbytes", "references", "table")

    def __init__(
        self, parameters: Sequence[Tensor], grads: Sequence[Tensor], table: Table, forget: Any
    ) -> None:
        self.table = table
        self.nbytes = list(map(_nbytes, grads))
        self.references = [weakref.ref(p, forget) for p in parameters]


_known: OrderedDict[tuple[int, ...], _Known] = OrderedDict()
_grad = attrgetter("grad")
_nbytes = attrgetter("nbytes")


def remember(parameters: list[Any], grads: list[Tensor], table: Table) -> None:
    """Next time `recall` knows these parameters, as long as all of them live: an id is never mistaken for another's."""
    ids = tuple(map(id, parameters))
    _known[ids] = _Known(parameters, grads, table, lambda _: _known.pop(ids, None))
    if len(_known) > _KEEP:
        _known.popitem(last=False)


def recall(parameters: list[Any]) -> Table | None:
    """The table of parameters that are known and whose gradients have not moved. Half the host time of `table_of`."""
    known = _known.get(tuple(map(id, parameters)))
    if known is None:
        return None
    table = known.table
    device = table.layout.device
    grads = list(map(_grad, parameters))
    try:
        pointers = list(map(Tensor.data_ptr, grads))
    except TypeError:  # one of them has no gradient now
        return None
    same = (
        pointers == table.addresses
        and list(map(_nbytes, grads))
        == known.nbytes  # the shape is the parameter's, so this is the dtype
        and all(map(Tensor.is_contiguous, grads))
        and device.index == torch.cuda.current_device()
        and _stream(device) == table.stream
    )
    return _used(table) if same else None


def _dense(tensor: Tensor) -> bool:
    """Every element of the memory it spans belongs to it once: the order does not matter to us."""
    return tensor.is_contiguous() or (
        tensor.dim() == 4 and tensor.is_contiguous(memory_format=torch.channels_last)
    )
