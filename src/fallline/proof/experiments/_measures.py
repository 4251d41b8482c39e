"""What facts look at: gradients along the depth, what autograd keeps, which error a call raises."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

__all__ = [
    "error_of",
    "gradient_along_depth",
    "saved_bytes",
]


def error_of(call: Callable[[], object]) -> str:
    """The name of the error a call raises, or "none"."""
    try:
        call()
    except Exception as error:
        return type(error).__name__
    return "none"


def gradient_along_depth(net: nn.Module, *, inputs: int = 64, seed: int = 1) -> list[float]:
    """The norm of each weight matrix's gradient from the input to the output, for the loss mean(output²)."""
    torch.manual_seed(seed)
    net.zero_grad()
    kind = next(net.parameters()).dtype
    net(torch.randn(64, inputs, dtype=kind)).pow(2).mean().backward()
    matrices = (p for p in net.parameters() if p.dim() > 1 and p.grad is not None)
    return [float(p.grad.norm()) for p in matrices if p.grad is not None]


@contextmanager
def saved_bytes(model: nn.Module) -> Iterator[list[int]]:
    """Sizes in bytes of what autograd keeps for the backward pass: each storage once, parameters not at all."""
    sizes: list[int] = []
    kept: list[Tensor] = []  # keeps storages alive, so that no address is used twice
    seen = {p.untyped_storage().data_ptr() for p in model.parameters()}

    def pack(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in seen:
            seen.add(storage.data_ptr())
            kept.append(tensor)
            sizes.append(storage.nbytes())
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        yield sizes
