"""The elements that stand for a tensor: at most `PROBE` of them, spread evenly, always the same ones."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

__all__ = ["PROBE", "local", "padded", "probes"]

PROBE = (
    1024  # elements per parameter, for weight norms, update ratios, fingerprints and float16 ranges
)
TOGETHER = 256  # tensors that are padded to one matrix


def probes(tensors: Sequence[Tensor]) -> tuple[Tensor, list[int]]:
    """Those of all tensors one after another, as float32, and how many each has."""
    home = tensors[0].device
    parts = [_strided(t) for t in tensors]
    if any(p.dtype is not torch.float32 or p.device != home for p in parts):
        parts = [p.to(home, torch.float32, non_blocking=True) for p in parts]
    return torch.cat(parts), [p.numel() for p in parts]


def padded(tensors: Sequence[Tensor]) -> Iterator[Tensor]:
    """The same as doubles, a row for each tensor, with zeros behind the short ones; some hundred tensors at a time."""
    flat, sizes = probes(tensors)
    parts = flat.double().split_with_sizes(sizes)
    for i in range(0, len(parts), TOGETHER):
        yield pad_sequence(list(parts[i : i + TOGETHER]), batch_first=True)


def local(tensor: Tensor) -> Tensor:
    """This rank's part of a DTensor."""
    own: Any = getattr(tensor, "_local_tensor", tensor)
    return own if isinstance(own, Tensor) else tensor


def _strided(tensor: Tensor) -> Tensor:
    tensor = local(tensor.detach())
    if tensor.is_complex():
        tensor = torch.view_as_real(tensor)
    elements = tensor.numel()
    stride, size = (elements // PROBE, PROBE) if elements > PROBE else (1, elements)
    if tensor.is_contiguous():
        return tensor.as_strided((size,), (stride,), tensor.storage_offset())
    return tensor.reshape(-1)[::stride][:size]
