"""Whether all ranks hold the same parameters, bit for bit."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from fallline.engine.gradients import is_dtensor
from fallline.instruments.same.fingerprint import fingerprint, resolve

__all__ = ["parameters_equal", "prints"]


def prints(model: nn.Module) -> dict[str, int]:
    """A fingerprint for each parameter and buffer; shards of one tensor differ on purpose and are left out."""
    names, parts = [], []
    for name, tensor in (*model.named_parameters(), *model.named_buffers()):
        if not is_dtensor(tensor):
            names.append(name)
            parts.append(fingerprint(tensor))
    return dict(zip(names, resolve(parts), strict=True))


def parameters_equal(model: nn.Module, group: Any = None) -> dict[str, list[int]]:
    """The parameters and buffers that are not the same on all ranks, each with the ranks that differ from rank 0; empty if all are equal.

    Every rank of the group has to call it, and gets the same answer. The model is only read.
    """
    mine = prints(model)
    if not (dist.is_available() and dist.is_initialized()) or dist.get_world_size(group) == 1:
        return {}
    everyone: list[Any] = [None] * dist.get_world_size(group)
    with torch.no_grad():
        dist.all_gather_object(everyone, mine, group=group)
    return unequal(everyone)


def unequal(everyone: list[dict[str, int]]) -> dict[str, list[int]]:
    """From the fingerprints of each rank: which names differ, and on which ranks."""
    first = everyone[0]
    names = dict.fromkeys(name for prints in everyone for name in prints)
    found = {
        name: [r for r, prints in enumerate(everyone) if prints.get(name) != first.get(name)]
        for name in names
    }
    return {name: ranks for name, ranks in found.items() if ranks}
