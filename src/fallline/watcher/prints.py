"""Fingerprints of parameters and of data, made where the tensors are, without waiting for a device.

Each number is a product with a vector that is the same in every run, so that prints of two runs can be subtracted.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import torch
from torch import Tensor

from fallline.replay.tensors import tensors_in
from fallline.runs.prints import WIDTH
from fallline.watcher.probes import PROBE, padded

__all__ = ["batch_print", "parameter_print"]

_MOST = 1 << 16  # elements of a tensor that are looked at
_LONGEST = 4096  # samples of a batch


def _vector(device: torch.device, row: int, length: int) -> Tensor:
    """The beginning of a fixed vector with a mean square of one half."""
    return _cosines(device, row, max(PROBE, 1 << (length - 1).bit_length()))[:length]


@cache
def _table(device: torch.device) -> Tensor:
    """The vectors that parameters are multiplied with, as columns."""
    return torch.stack([_vector(device, row, PROBE) for row in range(WIDTH - 1)], dim=1)


@cache
def _cosines(device: torch.device, row: int, length: int) -> Tensor:
    places = torch.arange(length, dtype=torch.float64, device=device)
    return torch.cos((places + 1) * (1.234567 + 0.7390851 * row))


@torch.no_grad()
def parameter_print(parameters: list[Tensor]) -> Tensor:
    """`WIDTH` doubles for each parameter, of at most `PROBE` of its elements."""
    table = _table(parameters[0].device)
    return torch.cat([_products(part, table) for part in padded(parameters)])


def _products(rows: Tensor, table: Tensor) -> Tensor:
    """The norm of each row, and its products with the vectors of the table."""
    norms = torch.linalg.vector_norm(rows, dim=1, keepdim=True)
    return torch.cat([norms, rows @ table[: rows.shape[1]]], dim=1)


@torch.no_grad()
def batch_print(batch: Any) -> Tensor | None:
    """A double for each sample of a batch; None where it has no tensors, or none whose first dimension counts samples."""
    tensors = [t.detach() for t in tensors_in(batch) if t.layout is torch.strided and t.numel()]
    tensors = [t for t in tensors if t.device.type != "meta" and not t.is_quantized]
    if not tensors or not tensors[0].dim():
        return None
    samples = min(tensors[0].shape[0], _LONGEST)
    home, found = tensors[0].device, None
    for row, tensor in enumerate(t for t in tensors if t.dim() and t.shape[0] >= samples):
        part = _by_sample(tensor[:samples], row % 7).to(home, non_blocking=True) * (row + 1)
        found = part if found is None else found + part
    return found


def _by_sample(tensor: Tensor, row: int) -> Tensor:
    if tensor.is_complex():
        tensor = torch.view_as_real(tensor)
    flat = tensor.reshape(tensor.shape[0], -1)
    stride = -(-flat.shape[1] * flat.shape[0] // _MOST)
    looked = flat[:, :: max(1, stride)].double()
    return (looked * _vector(looked.device, row, looked.shape[1])).sum(1)
