"""Small tensors that are looked at after every backward or step: the first, and the last."""

from __future__ import annotations

import torch
from torch import Tensor, nn

__all__ = ["small_parameters", "small_stepped"]

PROBE_ELEMENTS = 4_096


def small_parameters(model: nn.Module) -> list[Tensor]:
    """Whose gradients are looked at."""
    small: list[Tensor] = [
        p
        for p in model.parameters()
        if p.requires_grad
        and p.layout is torch.strided
        and p.numel() <= PROBE_ELEMENTS
        and not p.is_complex()
    ]
    return small[:1] + small[1:][-1:]


def small_stepped(optimizer: torch.optim.Optimizer) -> list[Tensor]:
    """Parameters on the CPU, without their graph."""
    small = [
        p.detach()
        for g in optimizer.param_groups
        for p in g["params"]
        if p.device.type == "cpu"
        and p.numel() <= PROBE_ELEMENTS
        and p.dtype is torch.float32
        and type(p.data) is Tensor
    ]
    return small[:1] + small[1:][-1:]
