"""A copy of a state in host memory, in buffers that are used again for every save.

Plain tensors are laid one after the other into a few large buffers. A file of a thousand small blocks is written with a thousand turns at Python's lock, each of which
training waits for; a file of a few large ones is not. Sharded tensors get their buffers from torch.distributed.checkpoint's staging.
From the second save on, all tensors are copied into those buffers by one call.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn

__all__ = ["Staging", "apart", "storage_of"]

BLOCK = 64 << 20  # bytes; a larger tensor has a buffer of its own
_ALIGNED = 64  # bytes


class Staging:
    """Copies states that look alike: the first one makes the buffers."""

    def __init__(self, pinned: bool) -> None:
        self._pinned = pinned
        self._stage: Any = None  # torch's own, for sharded tensors
        self._looks: list[Any] = []
        self._buffers: list[Any] = []
        self._blocks: list[Tensor] = []  # the memory behind them

    def __call__(self, state: dict[str, Any], non_blocking: bool) -> dict[str, Any]:
        sources = list(_tensors(state))
        looks = _looks(sources)
        if looks != self._looks:
            self._looks, self._buffers, self._blocks = [], [], []  # before there are new ones
            if not all(map(_is_plain, sources)):
                staged = self._by_torch(state, non_blocking)
                self._looks, self._buffers = looks, list(_tensors(staged))
                return staged
            self._blocks, self._buffers = _laid_out(sources, self._pinned)
            self._looks = looks
        if sources:
            into, of = [_local(b) for b in self._buffers], [_local(s) for s in sources]
            with torch.no_grad():
                torch._foreach_copy_(into, of, non_blocking)
        copied: dict[str, Any] = _filled(state, iter(self._buffers))
        return copied

    def _by_torch(self, state: dict[str, Any], non_blocking: bool) -> dict[str, Any]:
        """By torch's own stager; a plain copy before torch 2.9."""
        try:
            from torch.distributed.checkpoint._state_dict_stager import StateDictStager
        except ImportError:
            copied: dict[str, Any] = _copy(state)
            return copied
        if self._stage is None:
            self._stage = StateDictStager(pin_memory=self._pinned, share_memory=False)
        staged: dict[str, Any] = self._stage.stage(state, non_blocking=non_blocking)
        return staged


def _laid_out(sources: list[Tensor], pinned: bool) -> tuple[list[Tensor], list[Tensor]]:
    """Blocks of memory, and in them a place for each tensor, with its shape and strides; the same one for tied weights."""
    places: dict[Any, tuple[tuple[torch.dtype, int], int]] = {}
    sizes: dict[tuple[torch.dtype, int], int] = {}  # elements of each block
    newest: dict[torch.dtype, int] = {}
    for tensor in sources:
        if (look := _look(tensor)) in places:
            continue
        step = _ALIGNED // tensor.itemsize
        extent = -(-_extent(tensor) // step) * step
        block = tensor.dtype, newest.get(tensor.dtype, 0)
        if sizes.get(block) and (sizes[block] + extent) * tensor.itemsize > BLOCK:
            block = tensor.dtype, block[1] + 1
        newest[tensor.dtype] = block[1]
        places[look] = block, sizes.get(block, 0)
        sizes[block] = sizes.get(block, 0) + extent
    blocks = {block: _block(size, block[0], pinned) for block, size in sizes.items()}
    buffers = []
    for tensor in sources:
        block, offset = places[_look(tensor)]
        memory = blocks[block].untyped_storage()
        empty = torch.empty(0, dtype=tensor.dtype)
        buffers.append(empty.set_(memory, offset, tensor.shape, tensor.stride()))
    return list(blocks.values()), buffers


def _look(tensor: Tensor) -> tuple[Any, ...]:
    return (
        *(storage_of(tensor), tensor.storage_offset(), tensor.dtype),
        *(tensor.shape, tensor.stride()),
    )


def _extent(tensor: Tensor) -> int:
    """Elements from its first to its last in memory."""
    if tensor.numel() == 0:
        return 0
    return 1 + sum((n - 1) * s for n, s in zip(tensor.shape, tensor.stride(), strict=True))


def _block(size: int, dtype: torch.dtype, pinned: bool) -> Tensor:
    block = torch.empty(size, dtype=dtype)
    if pinned and size:
        # As torch's stager does: `pin_memory=True` would round up to a power of two
        address, cudart = block.data_ptr(), torch.cuda.cudart()  # type: ignore[no-untyped-call]
        if int(cudart.cudaHostRegister(address, block.nbytes, 1)) == 0:
            finalizer = weakref.finalize(block, cudart.cudaHostUnregister, address)
            finalizer.atexit = False  # CUDA may be gone by then
    return block


def _is_plain(tensor: Any) -> bool:
    """Whether it is numbers in memory, each in a place of its own."""
    return (
        type(tensor) in (Tensor, nn.Parameter)
        and tensor.layout is torch.strided
        and not tensor.is_quantized
        and not tensor.is_conj()
        and not tensor.is_neg()
        and _extent(tensor) == tensor.numel()
    )


def apart(value: Any) -> Any:
    """What was loaded, each tensor in memory of its own again: the others' must not stay because one does. Changes dicts and lists in place."""
    if isinstance(value, Tensor):
        if value.layout is not torch.strided:
            return value
        shared = value.untyped_storage().nbytes() > value.numel() * value.itemsize
        return value.clone() if shared else value
    if isinstance(value, dict):
        for key, item in value.items():
            value[key] = apart(item)
    elif isinstance(value, list):
        value[:] = map(apart, value)
    elif isinstance(value, tuple):
        return type(value)(map(apart, value))
    return value


def _looks(tensors: list[Any]) -> list[Any]:
    """What must be the same for the buffers to fit: kind, layout, and which tensors share memory."""
    first: dict[int, int] = {}
    return [
        (
            *(type(t), t.dtype, t.shape, t.stride(), t.device, getattr(t, "placements", None)),
            *(_local(t).storage_offset(), first.setdefault(storage_of(t), i)),
        )
        for i, t in enumerate(tensors)
    ]


def storage_of(tensor: Any) -> int:
    return _local(tensor).untyped_storage().data_ptr()


def _local(tensor: Any) -> Tensor:
    local: Tensor = getattr(tensor, "_local_tensor", tensor)  # of a DTensor
    return local


def _tensors(value: Any) -> Iterator[Any]:
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, Mapping):
        for item in value.values():
            yield from _tensors(item)
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from _tensors(item)


def _filled(value: Any, tensors: Iterator[Any]) -> Any:
    """The same tree with the next of these tensors in the place of each of its own."""
    if isinstance(value, Tensor):
        return next(tensors)
    if isinstance(value, Mapping):
        return {key: _filled(item, tensors) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return type(value)(_filled(item, tensors) for item in value)
    return value


def _copy(value: Any) -> Any:
    if isinstance(value, Tensor):
        return value.detach().to("cpu", copy=True)
    if isinstance(value, Mapping):
        return {key: _copy(item) for key, item in value.items()}
    return [_copy(item) for item in value] if isinstance(value, (list, tuple)) else value
