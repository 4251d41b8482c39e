"""What a forward pass keeps for its backward, up to a budget; the rest waits where there is more room.

All samples at once need the activations of all micro-batches. The budget comes from what the loop itself takes, so that the comparison
needs at most about twice as much: of a device the rest goes to the host, of the host to a file.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable

import torch
from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks

__all__ = ["spilling"]

Kept = Tensor | tuple[Callable[[], Tensor], torch.device]


def spilling(budget: int, folder: str) -> saved_tensors_hooks:
    """`budget`: bytes that may stay; `folder`: for the files."""
    known: set[int] = set()
    left = [budget]

    def pack(tensor: Tensor) -> Kept:
        if (
            tensor.is_leaf or tensor.layout is not torch.strided
        ):  # parameters and inputs are there anyway
            return tensor
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in known:
            known.add(storage.data_ptr())
            left[0] -= storage.nbytes()
        if left[0] >= 0:
            return tensor.detach()
        left[0] += 0 if tensor.is_cpu else storage.nbytes()
        known.discard(storage.data_ptr())
        plain = tensor.detach()
        return (_filed(plain, folder) if tensor.is_cpu else plain.cpu().clone), tensor.device

    def unpack(kept: Kept) -> Tensor:
        if isinstance(kept, Tensor):
            return kept
        read, device = kept
        return read().to(device)

    return saved_tensors_hooks(pack, unpack)


def _filed(tensor: Tensor, folder: str) -> Callable[[], Tensor]:
    """Writes it; what is returned reads it again."""
    handle, path = tempfile.mkstemp(dir=folder)
    os.close(handle)
    torch.save(tensor.clone(), path)
    return lambda: torch.load(path, weights_only=True)
